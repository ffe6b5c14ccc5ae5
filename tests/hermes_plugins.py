"""Hermes Agent homes with hand-written memory plugins, which the bridge runs without Hermes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

from everthread.adapters.memory.hermes_bridge.provider import HermesBridge
from everthread.domain.events import Delivery
from everthread.domain.model import Message, Role, SessionKey, SessionRef
from everthread.testing.recording_provider import StoredEntry
from tests.runtime import CLI

PLUGINS = Path(__file__).parent / "fixtures" / "hermes_plugins"


class PluginBehaviour:
    """Behaviour of the plugin `diary`, including the faults of the contract kit."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def set(self, **ways: Any) -> None:
        now = json.loads(self._file.read_text()) if self._file.exists() else {}
        new = self._file.with_suffix(".set")
        new.write_text(json.dumps(now | ways))
        new.replace(self._file)

    def fail_next(self, calls: int = 1) -> None:
        self.set(fail=calls)

    def reject_next(self, calls: int = 1) -> None:
        self.set(reject=calls)

    def lose_next(self, calls: int = 1) -> None:
        self.set(lose=calls)

    def hang(self) -> None:
        self.set(hang=True)

    def heal(self) -> None:
        self.set(fail=0, reject=0, lose=0, hang=False, down=False)


class Diaries:
    """A folder of the bridge, with a home that contains the hand-written plugins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir(parents=True)
        (home / "plugins").symlink_to(PLUGINS)
        (home / ".env").write_text(f"# how it behaves\nDIARY_WAYS={folder / 'ways.json'}\n")
        self.ways = PluginBehaviour(folder / "ways.json")

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `initialize`."""
        return {"folder": str(self.folder), "python": sys.executable, "people": "each", "owner": "ann"}

    def lines(self) -> list[dict[str, Any]]:
        """All recorded lines of all owners, oldest first."""
        files = self.folder.glob("**/diary.jsonl")
        return sorted(
            (json.loads(line) for file in files for line in file.read_text().splitlines()), key=lambda line: line["at"]
        )

    def effects(self) -> list[StoredEntry]:
        return [StoredEntry(line["session"], line["kind"], line["text"]) for line in self.lines()]

    def delivered(self, session: str, kind: str = "turn") -> list[str]:
        return [line["text"] for line in self.lines() if (line["session"], line["kind"]) == (session, kind)]


def ref(session: str, owner: str = "ann", key: SessionKey = CLI) -> SessionRef:
    return SessionRef(session, 0, key, 1, owner)


def nth(session: str, seq: int, attempt: int = 1) -> Delivery:
    return Delivery(f"{session}:{seq}:hermes:0", seq, attempt)


@contextlib.asynccontextmanager
async def bridge(diaries: Diaries, plugin: str = "diary", **settings: Any) -> AsyncGenerator[HermesBridge, None]:
    found = HermesBridge(plugin)
    try:
        await found.initialize(**(diaries.settings | settings))
        yield found
    finally:
        await found.shutdown()


def say(found: HermesBridge, words: str, session: str = "s1", seq: int = 1, owner: str = "ann") -> Awaitable[None]:
    messages = (Message(Role.USER, words), Message(Role.ASSISTANT, "I see."))
    return found.sync_turn(words, "I see.", ref=ref(session, owner), delivery=nth(session, seq), messages=messages)


def close(found: HermesBridge, session: str = "s1", seq: int = 9) -> Awaitable[None]:
    return found.on_session_end([Message(Role.USER, "all of it")], ref=ref(session), delivery=nth(session, seq))


def child_of(found: HermesBridge, owner: str = "ann") -> int:
    """Process id of a person's plugin."""
    child = found._users[owner]._child  # noqa: SLF001 - nobody else wants to know
    assert child is not None
    return child._process.pid  # noqa: SLF001


def is_running(pid: int) -> bool:
    """Return True if the process runs. An ended process that was not waited for has no program."""
    return Path(f"/proc/{pid}/exe").exists()


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
