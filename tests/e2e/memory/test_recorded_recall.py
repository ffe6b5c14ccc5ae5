"""Answers that repeat what recall showed them, after its source is forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.used_home import everthread
from tests.gateway import ANNA, GatewayFixture, gateway_fixture

from everthread.config.schema import GatewaySettings
from everthread.domain.model import NoteAction, NoteTarget, Role
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

FACT = "the zebra safe opens with 4711"


def script(request: Any) -> Say:
    """Answers in other words with what it was shown, so that the words themselves can't be found."""
    shown = "4711" in json.dumps([str(message.content) for message in request.messages])
    return Say("Four, seven, and two ones." if shown else "I don't know.")


@asynccontextmanager
async def fixture_at(home: Path) -> AsyncIterator[GatewayFixture]:
    links = {"me": ("fake:42",)}
    async with (
        ModelServer(script) as model,
        gateway_fixture(home, model, gateway=GatewaySettings(links=links)) as fixture,
    ):
        yield fixture


async def ask_elsewhere(fixture: GatewayFixture) -> str:
    """Ask in a new session, whose answer is made from recall. Return its id."""
    await fixture.hear("/new")
    await fixture.hear("how does the zebra safe open?")
    await fixture.hear("thanks")
    return (await fixture.session()).id


async def answers(fixture: GatewayFixture, session_id: str) -> list[tuple[str, str]]:
    turns = await fixture.turns(session_id)
    return [(turn.user_text, turn.assistant_text) for turn in turns]


@pytest.mark.parametrize("what", ["session", "fact"])
async def test_an_answer_that_repeats_a_forgotten_text_in_other_words_is_erased_on_request(
    tmp_path: Path, what: str
) -> None:
    async with fixture_at(tmp_path) as fixture:
        runtime = fixture.runtime
        if what == "session":
            await fixture.hear(FACT)
            request: Any = ForgetSession((await fixture.session(ANNA)).id)
        else:
            note = await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, FACT), owner="me")
            request = ForgetFact(note.note_id)
        elsewhere = await ask_elsewhere(fixture)
        shown = await runtime.store.read(lambda uow: uow.recalled.of_turn(elsewhere, 1))
        assert len(shown) == 1
        assert shown[0].source == "builtin"
        assert shown[0].score > 0
        assert (shown[0].session_id if what == "session" else shown[0].note_id) == (
            request.session_id if what == "session" else request.note_id
        )
        assert "zebra" not in repr(shown)
        assert "4711" not in repr(shown), "never text"

        await runtime.lifecycle.forget(request, owner="me", quoted=True)
        found = await answers(fixture, elsewhere)
        assert found[0] == ("how does the zebra safe open?", "[forgotten]"), "the person's words stay"
        assert found[1][0] == "thanks"
        hits = await runtime.store.read(lambda uow: uow.search.search("me", "seven", limit=9))
        assert [hit.number for hit in hits if hit.session_id == elsewhere and hit.number == 1] == []
        heard = await fixture.hear("and now?")
        assert heard != []


async def test_answers_that_may_quote_a_forgotten_session_are_listed_and_erased_later(tmp_path: Path) -> None:
    async with fixture_at(tmp_path) as fixture:
        await fixture.hear(FACT)
        gone = (await fixture.session(ANNA)).id
        elsewhere = await ask_elsewhere(fixture)
    quoted = [{"session": elsewhere, "turn": 1}]

    done = everthread("forget", gone, home=tmp_path, answer="n\n")
    assert "1 answer in other sessions may quote it, because recall showed it there." in done.stdout
    assert "They are kept; --quoted erases them too." in done.stdout
    assert "turn 1 of" in done.stdout
    assert elsewhere in done.stdout
    done = everthread("forget", gone, "--yes", "--json", home=tmp_path)
    assert (json.loads(done.stdout)["quoted"], json.loads(done.stdout)["quoted_erased"]) == (quoted, False)
    # The answer stays until it is asked for, also after the session itself is gone.
    assert b"Four, seven" in stored(tmp_path)
    done = everthread("forget", gone, "--quoted", "--yes", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["quoted"], json.loads(done.stdout)["quoted_erased"]) == (quoted, True)
    async with fixture_at(tmp_path) as fixture:
        assert await answers(fixture, elsewhere) == [
            ("how does the zebra safe open?", "[forgotten]"),
            ("thanks", (await answers(fixture, elsewhere))[1][1]),
        ]


def stored(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("everthread.db*"))


async def test_the_memories_that_a_tool_shows_are_recorded(tmp_path: Path) -> None:
    from everthread.domain.model import ToolCall

    def search(request: Any) -> Say:
        asks = request.messages[-1].role == Role.USER.value and "look" in str(request.messages[-1].content)
        return Say(calls=(ToolCall("1", "session_search", '{"query": "zebra"}'),)) if asks else Say("Done.")

    links = {"me": ("fake:42",)}
    async with (
        ModelServer(search) as model,
        gateway_fixture(tmp_path, model, gateway=GatewaySettings(links=links)) as fixture,
    ):
        await fixture.hear(FACT)
        gone = (await fixture.session(ANNA)).id
        await fixture.hear("/new")
        await fixture.hear("look it up")
        here = (await fixture.session()).id
        shown = await fixture.runtime.store.read(lambda uow: uow.recalled.of_turn(here, 1))
        assert [(item.source, item.session_id, item.number) for item in shown] == [("session_search", gone, 1)]
        await fixture.runtime.lifecycle.forget(ForgetSession(gone), owner="me", quoted=True)
        (turn,) = await fixture.turns(here)
        assert "4711" not in repr(turn)
