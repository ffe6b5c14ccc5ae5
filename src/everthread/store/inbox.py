"""Turns that run, what came in and goes out, and what it costs, as the store keeps them.

What is going on right now: slots, tool rows, the inbox, outgoing replies and spend.

What came with messages, as the inbox has it, and the files that are to be removed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.media import Media
from everthread.domain.model import (
    Fate,
    Inbound,
    InboxRow,
    InboxState,
    Reply,
    ReplyState,
    SessionKey,
    SessionRef,
    Slot,
    Thought,
    ToolRow,
    ToolState,
)
from everthread.domain.spend import Spent, Used
from everthread.store.sql import Execute, by_value, first, key_of, run


class Slots(Protocol):
    def add(self, slot: Slot) -> None: ...
    def get(self, turn_id: str) -> Slot | None: ...
    def live(self, session_id: str) -> Slot | None: ...
    def of_session(self, session_id: str) -> tuple[Slot, ...]: ...
    def delegated(self, session_id: str) -> bool: ...
    def held_by(self, holder: str) -> bool: ...
    def set_fate(self, turn_id: str, fate: Fate) -> None: ...
    def take_over(self, turn_id: str, holder: str) -> Slot: ...
    def drop(self, turn_id: str) -> None: ...
    def orphans(self, now: float) -> tuple[Slot, ...]:
        """Slots whose process has lost its lease."""
        ...

    def start_tool(self, row: ToolRow, owner: str) -> None: ...
    def finish_tool(self, turn_id: str, call_id: str, result: str) -> None: ...
    def tools(self, turn_id: str) -> tuple[ToolRow, ...]: ...
    def drop_tools(self, turn_id: str) -> None: ...


class Inbox(Protocol):
    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        """The stored row, and whether it is new: an update that was taken before is not taken again."""
        ...

    def known(self, inbound: Inbound) -> InboxRow | None:
        """What was taken under the same number before, if anything was."""
        ...

    def get(self, inbox_id: int) -> InboxRow | None: ...
    def first_waiting(self, key: SessionKey) -> InboxRow | None:
        """The key's next message."""
        ...

    def next(self, key: SessionKey) -> InboxRow | None:
        """The key's next message or command; also a command that was begun and never answered."""
        ...

    def last_user(self, key: SessionKey) -> str:
        """Who wrote there last; empty if nobody did, or it is not known. Not to be asked often."""
        ...

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """The key's commands that are not answered yet."""
        ...

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        """Where a message or a command waits, the longest waiting first."""
        ...

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        """The key's messages that wait."""
        ...

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        """The messages that a running turn of the key answers: the one it began with, and those it was steered by."""
        ...

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...]) -> bool:
        """What came with the message was fetched: it reads so from now on; without a text, nothing is to be answered.
        False if it waits no longer.
        """
        ...

    def take_up(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message is answered by this turn, which runs."""
        ...

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message stands in this turn, unanswered. What was not fetched of it never will be: it is named among
        the discarded.
        """
        ...

    def end_command(self, inbox_id: int) -> None:
        """The command was carried out."""
        ...

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        """The messages `of_turn` are done, or set aside: their words stand in the turn, if anywhere."""
        ...

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        """The chat that has this id on its platform now is the one that is known by another."""
        ...

    def moved_chats(self) -> dict[tuple[str, str], str]:
        """By platform and the id there: what such a chat is known as."""
        ...

    def put_reply(self, reply: Reply) -> Reply:
        """What is known of it then: the platform's id of a draft is kept, and from where on to look for it."""
        ...

    def attach(self, turn_id: str, owner: str, name: str, content: bytes) -> None:
        """What goes out with a reply, kept until nothing more is to become of it."""
        ...

    def attached(self, turn_id: str) -> bytes | None: ...
    def reply(self, turn_id: str) -> Reply | None: ...
    def replies(self, state: ReplyState, limit: int, after: tuple[float, str] | None = None) -> tuple[Reply, ...]:
        """The oldest first, from behind the one of that time and turn."""
        ...

    def newest_known(self, limit: int) -> tuple[tuple[SessionKey, str], ...]:
        """Where messages are, and their ids on the platform: of the newest replies, and the newest that came in."""
        ...

    def out_as(self, platform_message_id: str, since: float) -> tuple[Reply, ...]:
        """Those of that time or later which are known to be out under that id, on any platform."""
        ...


class Spend(Protocol):
    def reserve(self, ref: SessionRef, turn_id: str, model: str, amount: float, now: float) -> int: ...
    def settle(self, spent: Spent, ref: SessionRef, turn_id: str, now: float) -> None:
        """Write down what a call has cost, whether or not something was reserved for it."""
        ...

    def total(self, owner: str, since: float) -> float: ...
    def of_turn(self, ref: SessionRef, turn_id: str, since: float) -> float:
        """What was spent or is set aside for one turn, or whatever stands in its place."""
        ...

    def by_model(self, owner: str, since: float, sessions: Collection[str] | None = None) -> tuple[Used, ...]:
        """What each model was used for since, in these sessions or in all; the dearest first."""
        ...


_FATES = by_value(Fate)
_STATES = by_value(InboxState)
_SLOT = "turn_id, session_id, generation, key, epoch, owner, holder, fence, fate, inbox_id, begun_at"
_INBOX = "id, key, owner, content, account, update_id, command, user, media, accepted_at, state, session_id, turn_id"
_REPLY = "turn_id, key, session_id, owner, content, state, at, platform_message_id, parts, file, sent_after"
# Spelt out as in the index, which is on these few only: without it every message that ever came in would be read.
_OPEN = "key = ? AND state IN ('waiting', 'running')"
_UNSENT = (ReplyState.DRAFT, ReplyState.READY, ReplyState.SENDING, ReplyState.AMBIGUOUS, ReplyState.FAILED)
_SETTLED = (ReplyState.SENT, ReplyState.WITHHELD, ReplyState.AMBIGUOUS, ReplyState.FAILED)


def _slot(row: tuple[Any, ...]) -> Slot:
    ref = SessionRef(row[1], row[2], key_of(row[3]), row[4], row[5])
    return Slot(row[0], ref, row[6], row[7], _FATES[row[8]], row[9], row[10])


def _inbox_row(row: tuple[Any, ...]) -> InboxRow:
    number, key, owner, text, account, update_id, command, user, media, accepted_at, state, session_id, turn_id = row
    inbound = Inbound(key_of(key), owner, text, account, update_id, bool(command), user, media_in(media))
    return InboxRow(number, inbound, accepted_at, _STATES[state], session_id, turn_id)


def _tool_row(row: tuple[Any, ...]) -> ToolRow:
    turn_id, call_id, name, arguments, state, result, thought, thinker = row
    known = None if thought is None else Thought(thought, thinker)
    return ToolRow(turn_id, call_id, name, arguments, ToolState(state), result, known)


def _reply(row: tuple[Any, ...]) -> Reply:
    turn_id, key, session_id, owner, content, state, *rest = row
    return Reply(turn_id, key_of(key), session_id, owner, content, ReplyState(state), *rest)


class SlotTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def add(self, slot: Slot) -> None:
        ref = slot.ref
        run(
            self._execute(
                f"INSERT INTO slots ({_SLOT}) VALUES ({'?, ' * 10}?)",
                (
                    *(slot.turn_id, ref.session_id, ref.generation, str(ref.key), ref.epoch, ref.owner),
                    *(slot.holder, slot.fence, slot.fate, slot.inbox_id, slot.begun_at),
                ),
            )
        )

    def get(self, turn_id: str) -> Slot | None:
        row = first(self._execute(f"SELECT {_SLOT} FROM slots WHERE turn_id = ?", (turn_id,)))
        return _slot(row) if row else None

    def live(self, session_id: str) -> Slot | None:
        row = first(self._execute(f"SELECT {_SLOT} FROM slots WHERE session_id = ? AND fate = 'live'", (session_id,)))
        return _slot(row) if row else None

    def of_session(self, session_id: str) -> tuple[Slot, ...]:
        rows = self._execute(f"SELECT {_SLOT} FROM slots WHERE session_id = ? ORDER BY turn_id", (session_id,))
        return tuple(_slot(row) for row in rows)

    def delegated(self, session_id: str) -> bool:
        row = first(
            self._execute(
                "SELECT 1 FROM sessions s JOIN slots ON slots.session_id = s.id AND slots.fate = 'live' "
                "WHERE s.parent_id = ? AND s.kind = 'subagent' LIMIT 1",
                (session_id,),
            )
        )
        return row is not None

    def held_by(self, holder: str) -> bool:
        return first(self._execute("SELECT 1 FROM slots WHERE holder = ? LIMIT 1", (holder,))) is not None

    def set_fate(self, turn_id: str, fate: Fate) -> None:
        run(self._execute("UPDATE slots SET fate = ? WHERE turn_id = ?", (fate.value, turn_id)))

    def take_over(self, turn_id: str, holder: str) -> Slot:
        row = first(
            self._execute(
                f"UPDATE slots SET holder = ?, fence = fence + 1 WHERE turn_id = ? RETURNING {_SLOT}",
                (holder, turn_id),
            )
        )
        assert row is not None
        return _slot(row)

    def drop(self, turn_id: str) -> None:
        run(self._execute("DELETE FROM slots WHERE turn_id = ?", (turn_id,)))

    def orphans(self, now: float) -> tuple[Slot, ...]:
        columns = ", ".join(f"s.{column.strip()}" for column in _SLOT.split(","))
        rows = self._execute(
            f"SELECT {columns} FROM slots s LEFT JOIN leases l ON l.name = 'process:' || s.holder "
            "WHERE l.name IS NULL OR l.expires_at <= ? ORDER BY s.turn_id",
            (now,),
        )
        return tuple(_slot(row) for row in rows)

    def start_tool(self, row: ToolRow, owner: str) -> None:
        added = first(
            self._execute(
                "INSERT INTO tool_rows (turn_id, call_id, owner, name, arguments, position, state, result, thought, "
                "thinker) VALUES (?, ?, ?, ?, ?, (SELECT COUNT(*) FROM tool_rows WHERE turn_id = ?), ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING RETURNING call_id",
                (
                    *(row.turn_id, row.call_id, owner, row.name, row.arguments, row.turn_id, row.state.value),
                    *(row.result, *((row.thought.content, row.thought.model) if row.thought else (None, None))),
                ),
            )
        )
        if added is None:
            raise BadInput(f"this turn has a tool call {row.call_id!r} already; give each call an id of its own")

    def finish_tool(self, turn_id: str, call_id: str, result: str) -> None:
        done = first(
            self._execute(
                "UPDATE tool_rows SET state = ?, result = ? WHERE turn_id = ? AND call_id = ? RETURNING call_id",
                (ToolState.DONE.value, result, turn_id, call_id),
            )
        )
        if done is None:
            raise NotFound(f"no tool call {call_id!r} was started in this turn")

    def tools(self, turn_id: str) -> tuple[ToolRow, ...]:
        rows = self._execute(
            "SELECT turn_id, call_id, name, arguments, state, result, thought, thinker FROM tool_rows "
            "WHERE turn_id = ? ORDER BY position",
            (turn_id,),
        )
        return tuple(_tool_row(row) for row in rows)

    def drop_tools(self, turn_id: str) -> None:
        run(self._execute("DELETE FROM tool_rows WHERE turn_id = ?", (turn_id,)))


class InboxTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        key = inbound.key
        run(
            self._execute(
                "INSERT INTO inbox (key, owner, platform, account, update_id, content, command, user, media, "
                f"message_id, accepted_at, state) VALUES ({'?, ' * 11}'waiting') ON CONFLICT DO NOTHING",
                (
                    *(str(key), inbound.owner, key.platform, inbound.account, inbound.update_id, inbound.text),
                    *(inbound.command, inbound.user, media_text(inbound.media), inbound.message_id, now),
                ),
            )
        )
        row = first(self._execute(f"SELECT {_INBOX} FROM inbox WHERE changes() > 0 AND id = last_insert_rowid()"))
        if row is not None:
            return _inbox_row(row), True
        known = self.known(inbound)
        assert known is not None
        return known, False

    def known(self, inbound: Inbound) -> InboxRow | None:
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
        row = first(
            self._execute(
                f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'waiting' AND NOT command ORDER BY id LIMIT 1",
                (str(key),),
            )
        )
        return _inbox_row(row) if row else None

    def next(self, key: SessionKey) -> InboxRow | None:
        row = first(
            self._execute(
                f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND (state = 'waiting' OR command) ORDER BY id LIMIT 1",
                (str(key),),
            )
        )
        return _inbox_row(row) if row else None

    def last_user(self, key: SessionKey) -> str:
        last = "SELECT user FROM inbox WHERE key = ? AND user <> '' ORDER BY id DESC LIMIT 1"
        row = first(self._execute(last, (str(key),)))
        return row[0] if row else ""

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        rows = self._execute(f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND command ORDER BY id", (str(key),))
        return tuple(_inbox_row(row) for row in rows)

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        rows = self._execute(
            "SELECT key FROM inbox WHERE state IN ('waiting', 'running') AND (state = 'waiting' OR command) "
            "GROUP BY key ORDER BY MIN(id)"
        )
        return tuple(SessionKey.parse(str(key)) for (key,) in rows)

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        rows = self._execute(
            f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'waiting' AND NOT command AND id < ? ORDER BY id",
            (str(key), 2**62 if before_id is None else before_id),
        )
        return tuple(_inbox_row(row) for row in rows)

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        rows = self._execute(
            f"SELECT {_INBOX} FROM inbox WHERE {_OPEN} AND state = 'running' AND turn_id = ? ORDER BY id",
            (str(key), turn_id),
        )
        return tuple(_inbox_row(row) for row in rows)

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...]) -> bool:
        state = InboxState.WAITING if text else InboxState.DONE
        row = first(
            self._execute(
                "UPDATE inbox SET content = ?, media = ?, state = ? WHERE id = ? AND state = 'waiting' RETURNING id",
                (text, media_text(media), state.value, inbox_id),
            )
        )
        return row is not None

    def take_up(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        run(
            self._execute(
                "UPDATE inbox SET state = 'running', session_id = ?, turn_id = ? WHERE id = ?",
                (session_id, turn_id, inbox_id),
            )
        )

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
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
        run(self._execute("UPDATE inbox SET content = '', state = 'done' WHERE id = ?", (inbox_id,)))

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        run(
            self._execute(
                f"UPDATE inbox SET content = '', state = ? WHERE {_OPEN} AND state = 'running' AND turn_id = ?",
                (state, str(key), turn_id),
            )
        )

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        run(
            self._execute(
                "INSERT INTO moved_chats (platform, chat, known_as) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (platform, chat, known_as),
            )
        )

    def moved_chats(self) -> dict[tuple[str, str], str]:
        rows = self._execute("SELECT platform, chat, known_as FROM moved_chats")
        return {(platform, chat): known_as for platform, chat, known_as in rows}

    def put_reply(self, reply: Reply) -> Reply:
        r = reply
        # Once it is out, or never will be, its words stand in the turn and nowhere else.
        text = "" if r.state in (ReplyState.SENT, ReplyState.WITHHELD) else r.text
        query = "SELECT platform_message_id, sent_after FROM replies WHERE turn_id = ?"
        known_id, known_after = first(self._execute(query, (r.turn_id,))) or (None, "")
        # An id that is known is not given up for one that is not; nor is from where on to look for it.
        message_id = known_id if not r.platform_message_id and known_id is not None else r.platform_message_id
        sent_after = r.sent_after or known_after
        run(
            self._execute(
                f"INSERT INTO replies ({_REPLY}) VALUES ({'?, ' * 10}?) ON CONFLICT (turn_id) DO UPDATE SET "
                "content = excluded.content, state = excluded.state, at = excluded.at, parts = excluded.parts, "
                "platform_message_id = excluded.platform_message_id, sent_after = excluded.sent_after",
                (
                    *(r.turn_id, str(r.key), r.session_id, r.owner, text, r.state, r.at),
                    *(message_id, r.parts, r.file, sent_after),
                ),
            )
        )
        if r.file and r.state in _SETTLED:
            run(self._execute("DELETE FROM reply_files WHERE turn_id = ?", (r.turn_id,)))
        if (message_id, sent_after) == (r.platform_message_id, r.sent_after):
            return reply
        return replace(reply, platform_message_id=message_id, sent_after=sent_after)

    def attach(self, turn_id: str, owner: str, name: str, content: bytes) -> None:
        run(
            self._execute(
                "INSERT INTO reply_files (turn_id, owner, name, content) VALUES (?, ?, ?, ?)",
                (turn_id, owner, name, content),
            )
        )

    def attached(self, turn_id: str) -> bytes | None:
        row = first(self._execute("SELECT content FROM reply_files WHERE turn_id = ?", (turn_id,)))
        return bytes(row[0]) if row else None

    def reply(self, turn_id: str) -> Reply | None:
        row = first(self._execute(f"SELECT {_REPLY} FROM replies WHERE turn_id = ?", (turn_id,)))
        return _reply(row) if row else None

    def replies(self, state: ReplyState, limit: int, after: tuple[float, str] | None = None) -> tuple[Reply, ...]:
        # Spelt out as in the index, which is on these few only: without it every reply ever sent would be read.
        indexed = "AND state NOT IN ('sent', 'withheld')" if state in _UNSENT else ""
        at, turn_id = after or (float("-inf"), "")
        rows = self._execute(
            f"SELECT {_REPLY} FROM replies WHERE state = ? {indexed} AND (at, turn_id) > (?, ?) "
            "ORDER BY at, turn_id LIMIT ?",
            (state.value, at, turn_id, limit),
        )
        return tuple(_reply(row) for row in rows)

    def newest_known(self, limit: int) -> tuple[tuple[SessionKey, str], ...]:
        rows = self._execute(
            "SELECT * FROM (SELECT key, platform_message_id FROM replies WHERE platform_message_id <> '' "
            "ORDER BY at DESC LIMIT ?1) UNION ALL SELECT * FROM (SELECT key, message_id FROM inbox "
            "WHERE message_id <> '' ORDER BY id DESC LIMIT ?1)",
            (limit,),
        )
        return tuple((key_of(key), message_id) for key, message_id in rows)

    def out_as(self, platform_message_id: str, since: float) -> tuple[Reply, ...]:
        rows = self._execute(
            f"SELECT {_REPLY} FROM replies WHERE platform_message_id <> '' AND at >= ? AND platform_message_id = ?",
            (since, platform_message_id),
        )
        return tuple(_reply(row) for row in rows)


class SpendTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def reserve(self, ref: SessionRef, turn_id: str, model: str, amount: float, now: float) -> int:
        row = first(
            self._execute(
                "INSERT INTO spend (owner, session_id, turn_id, model, reserved, at) VALUES (?, ?, ?, ?, ?, ?) "
                "RETURNING id",
                (ref.owner, ref.session_id, turn_id, model, amount, now),
            )
        )
        assert row is not None
        return row[0]

    def settle(self, spent: Spent, ref: SessionRef, turn_id: str, now: float) -> None:
        tokens = (spent.input_tokens, spent.output_tokens)
        if spent.spend_id is None:
            run(
                self._execute(
                    "INSERT INTO spend (owner, session_id, turn_id, model, reserved, settled, input_tokens, "
                    "output_tokens, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (ref.owner, ref.session_id, turn_id, spent.model, spent.amount, spent.amount, *tokens, now),
                )
            )
            return
        run(
            self._execute(
                "UPDATE spend SET settled = ?, input_tokens = ?, output_tokens = ? WHERE id = ?",
                (spent.amount, *tokens, spent.spend_id),
            )
        )

    def total(self, owner: str, since: float) -> float:
        """What was spent, with what is reserved and not yet settled."""
        row = first(
            self._execute(
                "SELECT COALESCE(SUM(COALESCE(settled, reserved)), 0.0) FROM spend WHERE owner = ? AND at >= ?",
                (owner, since),
            )
        )
        assert row is not None
        return row[0]

    def of_turn(self, ref: SessionRef, turn_id: str, since: float) -> float:
        row = first(
            self._execute(
                "SELECT COALESCE(SUM(COALESCE(settled, reserved)), 0.0) FROM spend "
                "WHERE owner = ? AND at >= ? AND session_id = ? AND turn_id = ?",
                (ref.owner, since, ref.session_id, turn_id),
            )
        )
        assert row is not None
        return row[0]

    def by_model(self, owner: str, since: float, sessions: Collection[str] | None = None) -> tuple[Used, ...]:
        if sessions is not None and not sessions:
            return ()
        concerns = "" if sessions is None else f"AND session_id IN ({', '.join('?' * len(sessions))})"
        rows = self._execute(
            "SELECT model, COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(COALESCE(settled, 0.0)) AS amount, "
            "SUM(CASE WHEN settled IS NULL THEN reserved ELSE 0.0 END) AS waiting "
            f"FROM spend WHERE owner = ? AND at >= ? {concerns} GROUP BY model ORDER BY amount + waiting DESC, model",
            (owner, since, *(sessions or ())),
        )
        return tuple(Used(*row) for row in rows)


def media_in(text: str) -> tuple[Media, ...]:
    """What a row says came with a message: mostly nothing."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[Media, ...])
    except msgspec.DecodeError:
        # A fact that was forgotten stood in the middle of it: the message is left without what came with it.
        return ()


def media_text(media: tuple[Media, ...]) -> str:
    return msgspec.json.encode(media).decode() if media else ""


def discard_unfetched(execute: Execute, text: str) -> None:
    """Note for removal what nobody will fetch any more: whoever began to, and died, may have left a part of it."""
    for media in media_in(text):
        if media.handle:
            _note(execute, media)


def discard(execute: Execute, owner: str, session_id: str | None = None) -> None:
    """Note for removal what came with the owner's messages, or with those of one session."""
    came = "SELECT id, media FROM inbox WHERE media <> '' AND owner = ? AND (? IS NULL OR session_id = ?)"
    rows = list(execute(came, (owner, session_id, session_id)))
    for number, text in rows:
        for media in media_in(text):
            _note(execute, media)
        run(execute("UPDATE inbox SET media = '' WHERE id = ?", (number,)))


def _note(execute: Execute, media: Media) -> None:
    if media.path:
        run(execute("INSERT INTO discarded (path) VALUES (?) ON CONFLICT DO NOTHING", (media.path,)))
