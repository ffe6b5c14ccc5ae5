"""Incoming messages and commands, in the order of their arrival."""

from __future__ import annotations

from everthread.domain.media import Media
from everthread.domain.model import Inbound, InboxRow, InboxState, SessionKey
from everthread.store.attachments import discard_unfetched, media_in, media_text
from everthread.store.database import Execute
from everthread.store.sql import Row, by_value, first, key_of, placeholders

_STATES = by_value(InboxState)
_INBOX = 'id, key, owner, content, account, update_id, command, "user", media, accepted_at, state, session_id, turn_id'
# Spelt out as in the index, which is on these few only: without it every message that ever came in would be read.
_OPEN = "key = ? AND state IN ('waiting', 'running')"


class Inbox:
    """Messages and commands until their turn is committed."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        """The stored row, and whether it is new: an update that was taken before is not taken again."""
        key = inbound.key
        row = first(
            self._execute(
                'INSERT INTO inbox (key, owner, platform, account, update_id, content, command, "user", media, '
                f"message_id, accepted_at, state) VALUES ({placeholders(11)}, 'waiting') ON CONFLICT DO NOTHING "
                f"RETURNING {_INBOX}",
                (
                    *(str(key), inbound.owner, key.platform, inbound.account, inbound.update_id, inbound.text),
                    *(inbound.command, inbound.user, media_text(inbound.media), inbound.message_id, now),
                ),
            )
        )
        if row is not None:
            return _inbox_row(row), True
        known = self.known(inbound)
        assert known is not None
        return known, False

    def known(self, inbound: Inbound) -> InboxRow | None:
        """What was taken under the same number before, if anything was."""
        row = first(
            self._execute(
                f"SELECT {_INBOX} FROM inbox WHERE platform = ? AND account = ? AND update_id = ?",
                (inbound.key.platform, inbound.account, inbound.update_id),
            )
        )
        return _inbox_row(row) if row else None

    def get(self, inbox_id: int) -> InboxRow | None:
        row = first(self._execute(f"SELECT {_INBOX} FROM inbox WHERE id = ?", (inbox_id,)))
        return _inbox_row(row) if row else None

    def first_waiting(self, key: SessionKey) -> InboxRow | None:
        """The key's next message."""
        row = first(
            self._execute(
                f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'waiting' AND NOT command ORDER BY id LIMIT 1",
                (str(key),),
            )
        )
        return _inbox_row(row) if row else None

    def next(self, key: SessionKey) -> InboxRow | None:
        """The key's next message or command; also a command that was begun and never answered."""
        row = first(
            self._execute(
                f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND (state = 'waiting' OR command) ORDER BY id LIMIT 1",
                (str(key),),
            )
        )
        return _inbox_row(row) if row else None

    def last_user(self, key: SessionKey) -> str:
        """Who wrote there last; empty if nobody did, or it is not known. Not to be asked often."""
        last = 'SELECT "user" FROM inbox WHERE key = ? AND "user" <> \'\' ORDER BY id DESC LIMIT 1'
        row = first(self._execute(last, (str(key),)))
        return row[0] if row else ""

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """The key's commands that are not answered yet."""
        rows = self._execute(f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND command ORDER BY id", (str(key),))
        return tuple(_inbox_row(row) for row in rows)

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        """Where a message or a command waits, the longest waiting first."""
        rows = self._execute(
            "SELECT key FROM inbox WHERE state IN ('waiting', 'running') AND (state = 'waiting' OR command) "
            "GROUP BY key ORDER BY MIN(id)"
        )
        return tuple(SessionKey.parse(str(key)) for (key,) in rows)

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        """The key's messages that wait."""
        rows = self._execute(
            f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'waiting' AND NOT command AND id < ? ORDER BY id",
            (str(key), 2**62 if before_id is None else before_id),
        )
        return tuple(_inbox_row(row) for row in rows)

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        """The messages that a running turn of the key answers: the one it began with, and those it was steered by."""
        rows = self._execute(
            f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'running' AND turn_id = ? ORDER BY id",
            (str(key), turn_id),
        )
        return tuple(_inbox_row(row) for row in rows)

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...]) -> bool:
        """What came with the message was fetched: it reads so from now on; without a text, nothing is to be answered.
        False if it waits no longer.
        """
        state = InboxState.WAITING if text else InboxState.DONE
        row = first(
            self._execute(
                "UPDATE inbox SET content = ?, media = ?, state = ? WHERE id = ? AND state = 'waiting' RETURNING id",
                (text, media_text(media), state.value, inbox_id),
            )
        )
        return row is not None

    def take_up(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message is answered by this turn, which runs."""
        self._execute(
            "UPDATE inbox SET state = 'running', session_id = ?, turn_id = ? WHERE id = ?",
            (session_id, turn_id, inbox_id),
        )

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message stands in this turn, unanswered. What was not fetched of it never will be: it is named among
        the discarded.
        """
        # A message that has its place in a turn need not be kept twice.
        row = first(
            self._execute(
                "UPDATE inbox SET content = '', state = 'set_aside', session_id = ?, turn_id = ? WHERE id = ? "
                "RETURNING media",
                (session_id, turn_id, inbox_id),
            )
        )
        if row is not None and row[0]:
            discard_unfetched(self._execute, row[0])

    def end_command(self, inbox_id: int) -> None:
        """The command was carried out."""
        self._execute("UPDATE inbox SET content = '', state = 'done' WHERE id = ?", (inbox_id,))

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        """The messages `of_turn` are done, or set aside: their words stand in the turn, if anywhere."""
        self._execute(
            f"UPDATE inbox SET content = '', state = ? WHERE {_OPEN} AND state = 'running' AND turn_id = ?",
            (state, str(key), turn_id),
        )

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        """The chat that has this id on its platform now is the one that is known by another."""
        self._execute(
            "INSERT INTO moved_chats (platform, chat, known_as) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (platform, chat, known_as),
        )

    def moved_chats(self) -> dict[tuple[str, str], str]:
        """By platform and the id there: what such a chat is known as."""
        rows = self._execute("SELECT platform, chat, known_as FROM moved_chats")
        return {(platform, chat): known_as for platform, chat, known_as in rows}


def _inbox_row(row: Row) -> InboxRow:
    number, key, owner, text, account, update_id, command, user, media, accepted_at, state, session_id, turn_id = row
    inbound = Inbound(key_of(key), owner, text, account, update_id, bool(command), user, media_in(media))
    return InboxRow(number, inbound, accepted_at, _STATES[state], session_id, turn_id)
