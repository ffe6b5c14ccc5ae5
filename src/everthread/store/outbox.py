"""Outgoing replies, and the files that are sent with them."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.store.database import Table
from everthread.store.sql import Row, key_of

_REPLY = "turn_id, key, session_id, owner, content, state, at, platform_message_id, parts, file, sent_after"
_UNSENT = (ReplyState.DRAFT, ReplyState.READY, ReplyState.SENDING, ReplyState.AMBIGUOUS, ReplyState.FAILED)
_SETTLED = (ReplyState.SENT, ReplyState.WITHHELD, ReplyState.AMBIGUOUS, ReplyState.FAILED)


class Outbox(Table):
    """Replies from draft to sent, withheld or failed."""

    def put_reply(self, reply: Reply) -> Reply:
        """Insert or update a reply and return it as stored.

        A known message id of the platform, and the message after which a lost part is looked for, are kept if the new
        reply has none.
        """
        r = reply
        # The turn keeps the words of a reply that is sent or withheld.
        text = "" if r.state in (ReplyState.SENT, ReplyState.WITHHELD) else r.text
        query = "SELECT platform_message_id, sent_after FROM replies WHERE turn_id = ?"
        known_id, known_after = self._first(query, (r.turn_id,)) or (None, "")
        message_id = known_id if not r.platform_message_id and known_id is not None else r.platform_message_id
        sent_after = r.sent_after or known_after
        self._execute(
            f"INSERT INTO replies ({_REPLY}) VALUES ({'?, ' * 10}?) ON CONFLICT (turn_id) DO UPDATE SET "
            "content = excluded.content, state = excluded.state, at = excluded.at, parts = excluded.parts, "
            "platform_message_id = excluded.platform_message_id, sent_after = excluded.sent_after",
            (
                *(r.turn_id, str(r.key), r.session_id, r.owner, text, r.state, r.at),
                *(message_id, r.parts, r.file, sent_after),
            ),
        )
        if r.file and r.state in _SETTLED:
            self._execute("DELETE FROM reply_files WHERE turn_id = ?", (r.turn_id,))
        if (message_id, sent_after) == (r.platform_message_id, r.sent_after):
            return reply
        return replace(reply, platform_message_id=message_id, sent_after=sent_after)

    def attach(self, turn_id: str, owner: str, name: str, content: bytes) -> None:
        """Store the file of a reply until the reply is sent, withheld or given up."""
        self._execute(
            "INSERT INTO reply_files (turn_id, owner, name, content) VALUES (?, ?, ?, ?)",
            (turn_id, owner, name, content),
        )

    def attachment(self, turn_id: str) -> bytes | None:
        row = self._first("SELECT content FROM reply_files WHERE turn_id = ?", (turn_id,))
        return bytes(row[0]) if row else None

    def reply(self, turn_id: str) -> Reply | None:
        row = self._first(f"SELECT {_REPLY} FROM replies WHERE turn_id = ?", (turn_id,))
        return _reply(row) if row else None

    def replies(self, state: ReplyState, limit: int, after: tuple[float, str] | None = None) -> tuple[Reply, ...]:
        """Return replies in this state, the oldest first, after the given time and turn id."""
        # The condition of the partial index: without it the query reads every reply ever sent.
        indexed = "AND state NOT IN ('sent', 'withheld')" if state in _UNSENT else ""
        at, turn_id = after or (float("-inf"), "")
        rows = self._execute(
            f"SELECT {_REPLY} FROM replies WHERE state = ? {indexed} AND (at, turn_id) > (?, ?) "
            "ORDER BY at, turn_id LIMIT ?",
            (state.value, at, turn_id, limit),
        )
        return tuple(_reply(row) for row in rows)

    def newest_sent(self, limit: int) -> tuple[tuple[SessionKey, str], ...]:
        """Return key and platform message id of the newest replies and the newest incoming messages."""
        rows = self._execute(
            "SELECT * FROM (SELECT key, platform_message_id FROM replies WHERE platform_message_id <> '' "
            "ORDER BY at DESC LIMIT ?) AS sent UNION ALL SELECT * FROM (SELECT key, message_id FROM inbox "
            "WHERE message_id <> '' ORDER BY id DESC LIMIT ?) AS received",
            (limit, limit),
        )
        return tuple((key_of(key), message_id) for key, message_id in rows)

    def sent_as(self, platform_message_id: str, since: float) -> tuple[Reply, ...]:
        """Return replies since then that were sent with this message id, on any platform."""
        rows = self._execute(
            f"SELECT {_REPLY} FROM replies WHERE platform_message_id <> '' AND at >= ? AND platform_message_id = ?",
            (since, platform_message_id),
        )
        return tuple(_reply(row) for row in rows)


def _reply(row: Row) -> Reply:
    turn_id, key, session_id, owner, content, state, *rest = row
    return Reply(turn_id, key_of(key), session_id, owner, content, ReplyState(state), *rest)
