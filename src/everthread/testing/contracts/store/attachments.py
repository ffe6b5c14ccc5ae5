"""Attachments: block later messages until fetched, and are removed with forgotten messages."""

from __future__ import annotations

from contextlib import aclosing

from everthread.domain.boundary import New
from everthread.domain.media import Media
from everthread.domain.model import Inbound, InboxRow, InboxState, Message, Role, SessionKey
from everthread.lifecycle import ForgetOwner, ForgetSession
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OpenStore, StoreConversation, StoreFixture, on_store, present

KEY = SessionKey.parse("agent:main:there:dm:1")
PACKED = Media("file", "list.txt", "text/plain", 14, "handle-1", "there/list.txt")
KEPT = Media("file", path="there/list.txt")


async def _hand_over(talk: StoreConversation, text: str = "look") -> InboxRow:
    row, _ = await talk.lifecycle.accept(Inbound(KEY, "ann", text, media=(PACKED,)))
    return row


class AttachmentContract(StoreFixture):
    @in_loop
    async def test_a_message_is_claimed_only_after_its_files_were_fetched(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            talk = StoreConversation(store)
            row = await _hand_over(talk)
            assert row.inbound.media == (PACKED,)
            assert await talk.lifecycle.begin_turn(KEY) is None
            assert await other.write(lambda uow: uow.inbox.unpack(row.id, "look: milk", (KEPT,)))
            ticket = present(await talk.lifecycle.begin_turn(KEY))
            assert (ticket.texts, ticket.message.inbound.media) == (("look: milk",), (KEPT,))
            assert not await store.write(lambda uow: uow.inbox.unpack(row.id, "again", ()))

    @on_store
    async def test_an_empty_message_is_not_answered(self, talk: StoreConversation) -> None:
        row = await _hand_over(talk)
        assert await talk.write(lambda uow: uow.inbox.unpack(row.id, "", ()))
        left = present(await talk.read(lambda uow: uow.inbox.get(row.id)))
        assert left.state is InboxState.DONE
        assert await talk.read(lambda uow: uow.inbox.keys_waiting()) == ()

    @on_store
    async def test_a_message_with_unfetched_files_blocks_steering(self, talk: StoreConversation) -> None:
        ticket = await talk.begin("hello", KEY)
        first = await _hand_over(talk)
        second, _ = await talk.lifecycle.accept(Inbound(KEY, "ann", "and eggs"))
        assert await talk.lifecycle.steer(ticket, first.id) is None
        assert await talk.lifecycle.steer(ticket, second.id) is None
        await talk.write(lambda uow: uow.inbox.unpack(first.id, "milk", ()))
        for row in (first, second):
            assert await talk.lifecycle.steer(ticket, row.id) is not None

    @on_store
    async def test_files_of_a_forgotten_message_are_listed_for_removal(self, talk: StoreConversation) -> None:
        row = await _hand_over(talk)
        await talk.write(lambda uow: uow.inbox.unpack(row.id, "milk", (KEPT,)))
        ticket = present(await talk.lifecycle.begin_turn(KEY))
        ref = (await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, "milk")], None)).ref
        other, _ = await talk.lifecycle.accept(
            Inbound(KEY, "ann", "more", media=(Media("file", handle="h", path="there/more.txt"),))
        )
        await talk.lifecycle.forget(ForgetSession(ref.session_id), owner="ann")
        assert await talk.read(lambda uow: uow.attachments.discarded()) == ("there/list.txt",)
        await talk.lifecycle.forget(ForgetOwner(), owner="ann")
        assert await talk.read(lambda uow: uow.attachments.discarded()) == ("there/list.txt", "there/more.txt")
        left = present(await talk.read(lambda uow: uow.inbox.get(other.id)))
        assert left.inbound.media == ()
        await talk.write(lambda uow: uow.attachments.mark_removed("there/list.txt"))
        assert await talk.read(lambda uow: uow.attachments.discarded()) == ("there/more.txt",)

    @on_store
    async def test_unfetched_files_of_a_set_aside_message_are_listed_for_removal(self, talk: StoreConversation) -> None:
        """A process that died while fetching may have left a partial file."""
        await talk.say("hello", KEY)
        row = await _hand_over(talk)
        await talk.write(lambda uow: uow.inbox.unpack(row.id, "milk", (KEPT,)))
        await talk.lifecycle.accept(
            Inbound(KEY, "ann", "more", media=(Media("file", handle="h", path="there/more.txt"),))
        )
        await talk.lifecycle.cross(KEY, New(), owner="ann")
        assert await talk.read(lambda uow: uow.attachments.discarded()) == ("there/more.txt",)

    @in_loop
    async def test_a_moved_chat_keeps_its_known_id(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            assert await store.read_inline(lambda uow: uow.inbox.moved_chats()) == {}
            await store.write(lambda uow: uow.inbox.move_chat("there", "-100", "-1"))
            await store.write(lambda uow: uow.inbox.move_chat("there", "-100", "-1"))
            assert await other.read_inline(lambda uow: uow.inbox.moved_chats()) == {("there", "-100"): "-1"}
