"""Fields that every record of some work gets, without each call naming them."""

from __future__ import annotations

import asyncio
import contextvars

from everthread.concurrency import in_daemon_thread
from everthread.domain.model import SessionKey
from everthread.log_context import (
    current_log_scope,
    enter_log_scope,
    log_fields,
    log_scope,
    outside_log_scope,
)


def test_fields_of_a_key_are_those_that_are_known() -> None:
    key = SessionKey.parse("agent:main:post:dm:1")
    assert log_fields(key) == {"platform": "post", "key": str(key)}
    assert log_fields(key, "s1", "t1", "me") == {**log_fields(key), "session": "s1", "turn_id": "t1", "owner": "me"}


async def test_tasks_and_threads_of_some_work_have_its_fields() -> None:
    async def read() -> dict[str, str]:
        return dict(current_log_scope())

    with log_scope(session="s1", owner=""):
        task = asyncio.ensure_future(read())
        thread = in_daemon_thread(lambda: dict(current_log_scope()), "reader")
        with log_scope(session="s2"):
            assert current_log_scope() == {"session": "s2"}
        lasting = outside_log_scope(lambda: asyncio.ensure_future(read()))
    assert current_log_scope() == {}
    assert (await task, await thread, await lasting) == ({"session": "s1"}, {"session": "s1"}, {})


def test_a_request_keeps_its_fields_until_its_end() -> None:
    def request() -> dict[str, str]:
        enter_log_scope(owner="anna")
        return dict(current_log_scope())

    assert contextvars.copy_context().run(request) == {"owner": "anna"}
    assert current_log_scope() == {}
