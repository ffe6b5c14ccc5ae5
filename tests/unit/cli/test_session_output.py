"""Sessions as text and JSON."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.cli.session_output import session_as_json, session_name, session_state
from everthread.domain.model import Cause, Session, SessionKey, SessionKind

SESSION = Session("01ID", "me", SessionKey.parse("agent:main:cli:dm:1"), SessionKind.CHAT, Cause.NEW, 1_700_000_000.0)


def test_a_session_is_named_by_its_title_and_id() -> None:
    assert session_name(SESSION) == "01ID"
    assert session_name(replace(SESSION, title="two\nlines")) == '"two lines" (01ID)'


def test_an_ended_session_has_a_reason() -> None:
    ended = replace(SESSION, ended_at=1_700_000_060.0, end_reason="reset")
    assert (session_state(SESSION), session_state(ended)) == ("open", "ended (reset)")
    assert (session_as_json(ended, 2)["state"], session_as_json(ended, 2)["end_reason"]) == ("ended", "reset")
    assert session_as_json(SESSION, 2)["opened"] == "2023-11-14T22:13:20Z"
