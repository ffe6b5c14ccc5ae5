from msgspec.structs import replace

from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.store.unit_of_work import UnitOfWork


def reply_of(key: SessionKey, state: ReplyState = ReplyState.READY) -> Reply:
    return Reply("t1", key, "s1", "ann", "hello", state, 1.0)


def test_a_known_message_id_is_kept(uow: UnitOfWork, key: SessionKey) -> None:
    draft = replace(reply_of(key, ReplyState.DRAFT), platform_message_id="m1", sent_after="m0")
    uow.outbox.put_reply(draft)
    ready = uow.outbox.put_reply(reply_of(key))
    assert (ready.platform_message_id, ready.sent_after) == ("m1", "m0")
    assert uow.outbox.reply("t1") == ready


def test_a_sent_reply_keeps_no_text_and_no_file(uow: UnitOfWork, key: SessionKey) -> None:
    ready = replace(reply_of(key), file="list.txt")
    uow.outbox.put_reply(ready)
    uow.outbox.attach("t1", "ann", "list.txt", b"one")
    assert uow.outbox.attachment("t1") == b"one"
    assert uow.outbox.replies(ReplyState.READY, 10) == (ready,)
    uow.outbox.put_reply(replace(ready, state=ReplyState.SENT))
    sent = uow.outbox.reply("t1")
    assert sent is not None
    assert sent.text == ""
    assert uow.outbox.attachment("t1") is None
    assert uow.outbox.replies(ReplyState.READY, 10) == ()
