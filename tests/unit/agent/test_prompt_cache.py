"""The frozen start of a session's requests: numbered, kept with the session, copied by a branch."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.boundary import Branch, New
from everthread.domain.model import ChatType, Prefix, SessionKey, SessionRef

KEY = SessionKey("main", "cli", ChatType.DM, "1")


async def prefix_of(runtime: Runtime, ref: SessionRef | None) -> Prefix | None:
    assert ref is not None
    return await runtime.store.read(lambda uow: uow.turns.prefix(ref.session_id))


def test_a_branch_goes_on_with_its_parents_prefix_and_a_new_session_does_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with Runtime(Settings(tmp_path)) as runtime:
            first = (await runtime.lifecycle.cross(KEY, New(), owner="me")).ref
            assert first is not None
            await runtime.lifecycle.put_prefix(first, b"old rules")
            stored = await runtime.lifecycle.put_prefix(first, b"rules \x00 and tools")
            assert stored.number == 2
            branch = (await runtime.lifecycle.cross(KEY, Branch(), owner="me")).ref
            copied = await prefix_of(runtime, branch)
            assert copied is not None
            assert copied.content == b"rules \x00 and tools"
            fresh = (await runtime.lifecycle.cross(KEY, New(), owner="me")).ref
            assert await prefix_of(runtime, fresh) is None

    asyncio.run(story())
