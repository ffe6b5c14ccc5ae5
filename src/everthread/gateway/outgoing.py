"""The rows of the outbox as what is sent goes through its states. Pure but for the row that is read and written."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.model import Reply, ReplyState
from everthread.ports import UnitOfWork
from everthread.ports.platform import Address, Finder


def sent(reply: Reply, message_id: str, last: bool) -> Reply:
    """After one more part of it went out."""
    state = ReplyState.SENT if last else ReplyState.READY
    return replace(reply, state=state, parts=reply.parts + 1, platform_message_id=message_id)


def is_edit(reply: Reply) -> bool:
    """Whether what comes next of it is another text for a message that is out."""
    return reply.parts == 0 and bool(reply.platform_message_id)


def may_have_begun(reply: Reply) -> bool:
    """Whether a beginning of it may be out, under an id that nobody was told."""
    return reply.parts == 0 and reply.platform_message_id == ""


def ready(uow: UnitOfWork, turn_id: str) -> Reply | None:
    """The reply as it is now: it may have been forgotten since it was queued."""
    reply = uow.inbox.reply(turn_id)
    return reply if reply is not None and reply.state is ReplyState.READY else None


def claimed(uow: UnitOfWork, turn_id: str, finder: Finder | None) -> Reply | None:
    """Marked as handed over, and behind what: a beginning of it is looked for from where it was."""
    reply = ready(uow, turn_id)
    if reply is None:
        return None
    newest = finder.newest(Address.of(reply.key)) if finder is not None else ""
    sent_after = reply.sent_after if may_have_begun(reply) else newest
    return uow.inbox.put_reply(replace(reply, state=ReplyState.SENDING, sent_after=sent_after))


def looked(uow: UnitOfWork, turn_id: str, sent_after: str) -> None:
    """It is not before that, if it may be out."""
    reply = uow.inbox.reply(turn_id)
    if reply is not None and (reply.state is ReplyState.SENDING or may_have_begun(reply)):
        uow.inbox.put_reply(replace(reply, sent_after=sent_after))


def update(uow: UnitOfWork, reply: Reply) -> None:
    known = uow.inbox.reply(reply.turn_id)
    if known is None:
        return
    if known.text != reply.text:
        # Forgotten while it was being sent: its words don't come back, and no more of it goes out.
        state = ReplyState.WITHHELD if reply.state is ReplyState.READY else reply.state
        reply = replace(reply, text=known.text, state=state)
    uow.inbox.put_reply(reply)
