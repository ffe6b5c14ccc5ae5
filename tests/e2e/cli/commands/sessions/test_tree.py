"""`everthread sessions tree`. Drawing is tested in tests/unit."""

from __future__ import annotations

import asyncio
import os

from tests.e2e.cli.commands.sessions.sessions_home import SampleHome
from tests.e2e.commands import everthread, printed

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import SessionKey, SessionKind


def test_tree_draws_branches_continuations_and_resumptions(sample: SampleHome) -> None:
    lines = everthread(sample.home, "sessions", "tree", sample.branch, env=os.environ | {"COLUMNS": "120"}).stdout
    assert lines.splitlines() == [
        f"Trip to Lisbon (2 turns, open) {sample.lisbon}",
        lines.splitlines()[1],
        f"└─ branch: Trip to Lisbon #2 (3 turns, ended (compressed)) {sample.branch}",
        f"   └─ continuation: Trip to Lisbon #3 (1 turn, open) {sample.tip}",
    ]
    assert "↩ from Trip to Lisbon #3" in lines.splitlines()[1]
    [root] = printed(sample.home, "sessions", "tree", sample.tip)
    assert root["children"][0]["children"][0]["id"] == sample.tip
    assert root["resumed_from"][0]["session"] == sample.tip
    assert len(printed(sample.home, "sessions", "tree")) == 4


def test_delegated_sessions_are_in_trees_and_exports_but_not_listed(sample: SampleHome) -> None:
    async def hand_over() -> str:
        async with Runtime(Settings(sample.home)) as runtime:
            key = SessionKey.parse("agent:main:subagent:dm:1")
            boundary = New(kind=SessionKind.SUBAGENT, parent=sample.taxes)
            session = await runtime.store.read(lambda uow: uow.sessions.get(sample.taxes))
            assert session is not None
            child = (await runtime.lifecycle.cross(key, boundary, owner=session.owner)).ref
            assert child is not None
            return child.session_id

    child = asyncio.run(hand_over())
    drawn = everthread(sample.home, "sessions", "tree", sample.taxes).stdout.splitlines()
    assert drawn[-1] == f"└─ delegated: - (0 turns, open) {child}"
    assert child not in {session["id"] for session in printed(sample.home, "sessions", "list")}
    assert child in everthread(sample.home, "sessions", "export", "--all").stdout
