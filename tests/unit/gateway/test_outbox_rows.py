"""The states of a reply in the outbox: claims, forgotten replies, and retries of the writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime import CoreFixture

from everthread.domain.errors import StoreBusy
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.gateway import outbox_rows as rows
from everthread.gateway.outbox_rows import ReplyWriter

REPLY = Reply("t1", SessionKey.parse("agent:main:fake:dm:42"), "s1", "me", "hello", ReplyState.READY, 1.0)
BEGUN = replace(REPLY, platform_message_id="")
SHOWN = replace(REPLY, platform_message_id="m7")


class NewestMessage:
    """A finder that knows one message."""

    def newest(self, to: Any) -> str:
        return "m5"


async def read(core: CoreFixture) -> Reply:
    reply = await core.store.read(lambda uow: uow.outbox.reply("t1"))
    assert reply is not None
    return reply


async def put(core: CoreFixture, reply: Reply) -> Reply:
    return await core.store.write(lambda uow: uow.outbox.put_reply(reply))


def test_a_sent_part_counts_and_the_last_one_ends_the_reply() -> None:
    first = rows.with_part_sent(REPLY, "m1", False)
    assert (first.state, first.parts, first.platform_message_id) == (ReplyState.READY, 1, "m1")
    assert rows.with_part_sent(first, "m2", True).state is ReplyState.SENT


@pytest.mark.parametrize(
    ("reply", "is_edit", "may_have_begun"), [(REPLY, False, False), (BEGUN, False, True), (SHOWN, True, False)]
)
def test_the_message_id_shows_whether_a_draft_was_sent(reply: Reply, is_edit: bool, may_have_begun: bool) -> None:
    assert (rows.is_edit(reply), rows.may_have_begun(reply)) == (is_edit, may_have_begun)
    later = replace(reply, parts=1)
    assert (rows.is_edit(later), rows.may_have_begun(later)) == (False, False)


async def test_a_reply_is_claimed_once_with_the_newest_known_message(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await put(core, REPLY)
        finder: Any = NewestMessage()
        claimed = await core.store.write(lambda uow: rows.claim(uow, "t1", finder))
        assert claimed is not None
        assert (claimed.state, claimed.sent_after) == (ReplyState.SENDING, "m5")
        assert await read(core) == claimed
        assert await core.store.write(lambda uow: rows.claim(uow, "t1", finder)) is None


async def test_a_reply_that_may_have_begun_keeps_the_start_of_its_search(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await put(core, replace(BEGUN, sent_after="m2"))
        finder: Any = NewestMessage()
        claimed = await core.store.write(lambda uow: rows.claim(uow, "t1", finder))
        assert claimed is not None
        assert claimed.sent_after == "m2"


async def test_a_search_is_narrowed_only_while_the_reply_is_uncertain(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        for state, expected in ((ReplyState.SENDING, "m9"), (ReplyState.SENT, "m2")):
            reply = await put(core, replace(REPLY, state=state, sent_after="m2"))
            narrowed = replace(reply, sent_after="m9")
            await core.store.write(lambda uow, narrowed=narrowed: rows.narrow_search(uow, narrowed))
            assert (await read(core)).sent_after == expected


async def test_the_text_of_a_forgotten_reply_is_not_stored_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        sent = await put(core, replace(REPLY, state=ReplyState.SENDING))
        await put(core, replace(sent, text="", state=ReplyState.WITHHELD))
        writer = ReplyWriter(core.store, core.clock)
        assert not await writer.is_unchanged(sent)
        await writer.save(rows.with_part_sent(sent, "m1", False))
        reply = await read(core)
        assert (reply.text, reply.state) == ("", ReplyState.WITHHELD)


async def test_giving_up_stores_the_state_and_an_incident(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await put(core, REPLY)
        await ReplyWriter(core.store, core.clock).give_up(REPLY, ReplyState.AMBIGUOUS, "the connection broke")
        assert (await read(core)).state is ReplyState.AMBIGUOUS
        (incident,) = await core.store.read(lambda uow: uow.incidents.newest(10))
        assert "may not have reached fake chat 42" in incident.text
        assert "the connection broke" in incident.text


async def test_the_writer_retries_until_the_store_accepts_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "RETRY_S", 0.0)
    async with CoreFixture(tmp_path) as core:
        await put(core, REPLY)
        write, failures = core.store.write, [StoreBusy("locked"), StoreBusy("locked")]

        async def failing(work: Any) -> Any:
            if failures:
                raise failures.pop()
            return await write(work)

        monkeypatch.setattr(core.store, "write", failing)
        writer = ReplyWriter(core.store, core.clock)
        await writer.try_save(replace(REPLY, state=ReplyState.SENT))
        assert (await read(core)).state is ReplyState.READY, "saved once, and it failed"
        await writer.save(replace(REPLY, state=ReplyState.SENT))
        assert (await read(core)).state is ReplyState.SENT
