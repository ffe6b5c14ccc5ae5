"""Incoming messages and commands, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everthread.domain.media import Media, reserved_bytes
from everthread.domain.model import Inbound, InboxRow, InboxState, SessionKey
from everthread.store.attachments import discard_unfetched, media_in, media_text
from everthread.store.database import Table
from everthread.store.sql import Row, by_value, key_of, placeholders

_STATES = by_value(InboxState)
_INBOX = (
    'id, key, owner, content, account, update_id, command, "user", media, original_accounts, accepted_at, state, '
    "session_id, turn_id"
)
# The condition of the partial index: without it a query reads every message ever accepted.
_OPEN = "key = ? AND state IN ('waiting', 'running')"


class Inbox(Table):
    """Messages and commands, from acceptance to the commit of their turn."""

    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        """Store a message. Return its row and True, or the earlier row and False if the update was accepted before."""
        key = inbound.key
        row = self._first(
            'INSERT INTO inbox (key, owner, platform, account, update_id, content, command, "user", media, '
            f"message_id, accepted_at, media_bytes, original_accounts, state) VALUES ({placeholders(13)}, 'waiting') "
            f"ON CONFLICT DO NOTHING RETURNING {_INBOX}",
            (
                *(str(key), inbound.owner, key.platform, inbound.account, inbound.update_id, inbound.text),
                *(inbound.command, inbound.user, media_text(inbound.media), inbound.message_id, now),
                reserved_bytes(inbound.media),
                _accounts_text(inbound.original_accounts),
            ),
        )
        if row is not None:
            return _inbox_row(row), True
        known = self.known(inbound)
        assert known is not None
        return known, False

    def known(self, inbound: Inbound) -> InboxRow | None:
        """Return the row that was accepted under the same update id."""
        return self._find(
            "platform = ? AND account = ? AND update_id = ?", (inbound.key.platform, inbound.account, inbound.update_id)
        )

    def get(self, inbox_id: int) -> InboxRow | None:
        return self._find("id = ?", (inbox_id,))

    def first_waiting(self, key: SessionKey) -> InboxRow | None:
        """Return the key's next message."""
        return self._find(f"{_OPEN} AND state = 'waiting' AND NOT command ORDER BY id LIMIT 1", (str(key),))

    def next(self, key: SessionKey) -> InboxRow | None:
        """Return the key's next message or command, including a command that was started but not answered."""
        return self._find(f"{_OPEN} AND (state = 'waiting' OR command) ORDER BY id LIMIT 1", (str(key),))

    def has_open(self, key: SessionKey) -> bool:
        """Return true if a message or command of the key waits or runs."""
        return self._exists(f"SELECT 1 FROM inbox WHERE {_OPEN} LIMIT 1", (str(key),))

    def last_user(self, key: SessionKey) -> str:
        """Return the last known sender at the key, or an empty string. Reads many rows."""
        last = 'SELECT "user" FROM inbox WHERE key = ? AND "user" <> \'\' ORDER BY id DESC LIMIT 1'
        row = self._first(last, (str(key),))
        return row[0] if row else ""

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """Return the key's unanswered commands."""
        return self._select(f"{_OPEN} AND command ORDER BY id", (str(key),))

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        """Return keys with a waiting message or command, the longest waiting first."""
        rows = self._execute(
            "SELECT key FROM inbox WHERE state IN ('waiting', 'running') AND (state = 'waiting' OR command) "
            "GROUP BY key ORDER BY MIN(id)"
        )
        return tuple(SessionKey.parse(str(key)) for (key,) in rows)

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        """Return the key's waiting messages."""
        return self._select(
            f"{_OPEN} AND state = 'waiting' AND NOT command AND id < ? ORDER BY id",
            (str(key), 2**62 if before_id is None else before_id),
        )

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        """Return the messages that a running turn answers: its first one and those that steered it."""
        return self._select(f"{_OPEN} AND state = 'running' AND turn_id = ? ORDER BY id", (str(key), turn_id))

    def of_any_turn(self, turn_id: str) -> tuple[InboxRow, ...]:
        """Return the messages that a running or ended turn answers, the latter without their text."""
        return self._select("turn_id = ? ORDER BY id", (turn_id,))

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...], media_bytes: int = 0) -> bool:
        """Store the message's text and attachments after its files were fetched. An empty text needs no answer.

        `media_bytes` is the size of the files.

        Return False if the message is not waiting any more.
        """
        state = InboxState.WAITING if text else InboxState.DONE
        return self._exists(
            "UPDATE inbox SET content = ?, media = ?, media_bytes = ?, state = ? WHERE id = ? AND state = 'waiting' "
            "RETURNING id",
            (text, media_text(media), media_bytes, state.value, inbox_id),
        )

    def assign(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """Assign the message to a running turn."""
        self._execute(
            "UPDATE inbox SET state = 'running', session_id = ?, turn_id = ? WHERE id = ?",
            (session_id, turn_id, inbox_id),
        )

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """Store the message in this turn without an answer. Files that were not fetched yet are discarded."""
        row = self._first(
            "UPDATE inbox SET content = '', state = 'set_aside', session_id = ?, turn_id = ? WHERE id = ? "
            "RETURNING media",
            (session_id, turn_id, inbox_id),
        )
        if row is not None and row[0]:
            discard_unfetched(self._execute, inbox_id, row[0])

    def end_command(self, inbox_id: int) -> None:
        """Record that the command was executed."""
        self._execute("UPDATE inbox SET content = '', state = 'done' WHERE id = ?", (inbox_id,))

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        """Mark the turn's messages as done or set aside, and clear their text, which the turn keeps."""
        self._execute(
            f"UPDATE inbox SET content = '', state = ? WHERE {_OPEN} AND state = 'running' AND turn_id = ?",
            (state, str(key), turn_id),
        )

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        """Map a chat's new id on its platform to the id under which it is known."""
        self._execute(
            "INSERT INTO moved_chats (platform, chat, known_as) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (platform, chat, known_as),
        )

    def moved_chats(self) -> dict[tuple[str, str], str]:
        """Return the known id of each moved chat, by platform and new id."""
        rows = self._execute("SELECT platform, chat, known_as FROM moved_chats")
        return {(platform, chat): known_as for platform, chat, known_as in rows}

    def _select(self, condition: str, values: Sequence[object]) -> tuple[InboxRow, ...]:
        rows = self._execute(f"SELECT {_INBOX} FROM inbox WHERE {condition}", values)
        return tuple(_inbox_row(row) for row in rows)

    def _find(self, condition: str, values: Sequence[object]) -> InboxRow | None:
        return next(iter(self._select(condition, values)), None)


def _inbox_row(row: Row) -> InboxRow:
    number, key, owner, text, account, update_id, command, user, media, asked_by, *rest = row
    accepted_at, state, session_id, turn_id = rest
    inbound = Inbound(key_of(key), owner, text, account, update_id, bool(command), user, media_in(media))
    if asked_by:
        inbound = replace(inbound, original_accounts=msgspec.json.decode(asked_by, type=tuple[str, ...]))
    return InboxRow(number, inbound, accepted_at, _STATES[state], session_id, turn_id)


def _accounts_text(accounts: tuple[str, ...]) -> str:
    return msgspec.json.encode(accounts).decode() if accounts else ""
