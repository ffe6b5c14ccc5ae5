"""The outbox sweep of a running gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway import ANNA, gateway_fixture
from tests.runtime import until

from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.gateway import outbox as delivery
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def test_replies_for_removed_platforms_do_not_hide_others_from_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SWEPT_MAX", 3)
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        gone = SessionKey.parse("agent:main:gone:dm:42")
        for number in range(10):
            reply = Reply(f"old-{number}", gone, "", "me", "hello", ReplyState.READY, float(number))
            await fixture.runtime.store.write(lambda uow, reply=reply: uow.outbox.put_reply(reply))
        news = Reply("new", ANNA, "", "me", "a notice", ReplyState.READY, 100.0)
        await fixture.runtime.store.write(lambda uow: uow.outbox.put_reply(news))
        for _ in range(10):
            await fixture.gateway.outbox.sweep()
        await until(lambda: fixture.platform.texts() == ["a notice"])
