"""Shell completion of sessions, notes and settings, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from everthread.bootstrap.runtime import Runtime
from everthread.cli.context import CliContext
from everthread.cli.main import everthread
from everthread.cli.shell_complete import Completer, complete_notes, complete_sessions, complete_settings
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import NoteAction, NoteTarget, SessionKey
from everthread.lifecycle import NoteChange

Complete = Callable[[Completer, str], list[tuple[str, str | None]]]


@pytest.fixture
def complete(tmp_path: Path) -> Complete:
    cli = CliContext(Runtime)
    cli.home = str(tmp_path)
    context = click.Context(everthread, obj=cli)

    def complete(completer: Completer, incomplete: str) -> list[tuple[str, str | None]]:
        return [(item.value, item.help) for item in completer(context, everthread.params[0], incomplete)]

    return complete


def test_sessions_are_completed_by_id_and_by_a_title_of_one_word(complete: Complete, tmp_path: Path) -> None:
    async def open_session() -> str:
        async with Runtime(Settings(tmp_path)) as runtime:
            key = SessionKey.parse("agent:main:cli:dm:1")
            crossing = await runtime.lifecycle.cross(key, New("Lisbon"), owner="me")
            assert crossing.ref is not None
            return crossing.ref.session_id

    session_id = asyncio.run(open_session())
    assert complete(complete_sessions, "") == [(session_id, "Lisbon")]
    assert complete(complete_sessions, session_id[:20].lower()) == [(session_id, "Lisbon")]
    assert complete(complete_sessions, "lis") == [("Lisbon", None)]


def test_notes_are_completed_by_id_with_their_text(complete: Complete, tmp_path: Path) -> None:
    async def write_note() -> str:
        async with Runtime(Settings(tmp_path)) as runtime:
            change = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes mangoes")
            return (await runtime.lifecycle.write_note(change, owner=runtime.settings.owner)).note_id

    note_id = asyncio.run(write_note())
    assert complete(complete_notes, note_id[:3].lower()) == [(note_id, "likes mangoes")]
    assert complete(complete_notes, "no such") == []


def test_settings_are_completed_by_key_without_paths(complete: Complete) -> None:
    assert ("limits.turn_s", None) in complete(complete_settings, "limits.t")
    assert complete(complete_settings, "home") == []


def test_an_error_gives_no_completions(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("not = = toml")
    assert complete(complete_settings, "limits") == []
