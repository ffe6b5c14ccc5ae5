"""Erase words from every table that `text_registry` declares. Imported on the first request to forget.

Tested in tests/unit/store/test_erasure.py, tests/unit/lifecycle/test_forget.py and test_forget_everywhere.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from everthread.domain.forgotten_words import WordMark, bytes_contain_words, contains_words, erase_words, mark_of
from everthread.domain.media import safe_file_name
from everthread.domain.model import FORGOTTEN, SUBAGENT_PLATFORM, NoteVersion, Session
from everthread.domain.schedule import slug
from everthread.store.attachments import discard, discard_rows
from everthread.store.database import Database, Table
from everthread.store.forgotten_facts import remove_request_text
from everthread.store.recalled import QuotingTurn
from everthread.store.search_index import SearchIndex
from everthread.store.sessions import folded
from everthread.store.sql import from_json, to_json
from everthread.store.text_registry import (
    TABLES,
    DeleteRow,
    DiscardFiles,
    ErasedWith,
    Indexed,
    Method,
    Replace,
    ReplaceInJson,
    RunStatement,
    SetColumns,
    TextTable,
)
from everthread.store.turns import MESSAGES_PER_TURN

_NAME_CHARS_MIN = 3
"""Fewest letters and digits of a text that is also searched as a file name. A shorter name matches unrelated files."""


class Scrubber(Table):
    """Erase the text of sessions, notes, facts and owners, and find the columns that contain a text."""

    def __init__(self, database: Database, search: SearchIndex) -> None:
        super().__init__(database)
        self._search = search

    def scrub_session(self, session: Session, *, operator: str | None = None) -> tuple[str, ...]:
        """Erase the text of a session: messages, notes, replies, errors and derived prefixes.

        `operator` is the owner of the installation; without one, errors that may quote anybody are erased too. Return
        the texts of the notes that were written in the session.
        """
        texts = self._texts("SELECT content FROM note_versions WHERE session_id = ?", session.id)
        turns = [row[0] for row in self._execute("SELECT id FROM turns WHERE session_id = ?", (session.id,))]
        for table in TABLES:
            self._scrub_turns(table, turns)
            self._discard_files(table, session.owner, session.id)
            self._run(table.on_session, session.id)
            if operator is None or operator == session.owner:
                self._run(table.on_session_of_operator, session.id)
            if session.key.platform == SUBAGENT_PLATFORM:
                self._run(table.on_delegated, str(session.key))
            if texts:
                self._run(table.on_notes, session.owner)
        return texts

    def scrub_notes(self, owner: str, versions: tuple[NoteVersion, ...]) -> None:
        """Erase these versions, and what may quote them."""
        for table in TABLES if versions else ():
            for version in versions:
                self._run(table.on_note_version, owner, version.note_id, version.version)
            self._run(table.on_notes, owner)

    def scrub_descendants(self, session: Session, session_ids: tuple[str, ...]) -> None:
        """Erase the summaries, prefixes and titles of descendants that derive from the session."""
        _, base = folded(session.title)
        for table in TABLES:
            for session_id in session_ids:
                self._run(table.on_descendant, session_id, base)

    def scrub_owner(self, owner: str) -> tuple[str, ...]:
        """Erase the data of the owner that belongs to no session: messages, notes, schedules, access.

        Return the texts of the owner's notes.
        """
        texts = self._texts("SELECT content FROM note_versions WHERE owner = ?", owner)
        requests = list(self._execute("SELECT session_id, seq FROM log WHERE owner = ? AND kind = 'forget'", (owner,)))
        for session_id, seq in requests:
            remove_request_text(self._execute, session_id, seq)
        for table in TABLES:
            self._discard_files(table, owner)
            self._run(table.on_owner, owner)
            for column, method in table.erased.items():
                if isinstance(method, RunStatement) and method.sessionless:
                    for text in texts:
                        self._delete_rows(table, column, method, owner, text)
        return texts

    def scrub_fact(self, note_id: str, owner: str) -> tuple[str, ...]:
        """Erase each version of a note wherever its exact text occurs among the owner's rows.

        Return the texts, the longest first.
        """
        found = self.note_texts(note_id, owner)
        for table in TABLES:
            self._run(table.on_note, owner, note_id)
        for text in found:
            for table in TABLES:
                for column, method in table.erased.items():
                    self._erase(table, column, method, owner, text)
        return found

    def note_texts(self, note_id: str, owner: str) -> tuple[str, ...]:
        """Return every text that the note has had, the longest first: one may contain another."""
        rows = self._execute("SELECT content FROM note_versions WHERE note_id = ? AND owner = ?", (note_id, owner))
        return tuple(sorted({row[0] for row in rows} - {"", FORGOTTEN}, key=lambda text: (-len(text), text)))

    def find(self, text: str, owner: str) -> tuple[str, ...]:
        """Return the columns in which the owner's rows contain the text, as `table.column`."""
        return tuple(
            f"{table.name}.{column}"
            for table in TABLES
            for column, method in table.erased.items()
            if not isinstance(method, Indexed) and self._rows_with(table, column, method, owner, text)
        )

    def marks(self, owner: str, text: str) -> tuple[WordMark, ...]:
        """Return a mark for each form in which the text may be stored; see `stored_forms`."""
        return tuple(mark_of(owner, form) for form in stored_forms(text))

    def turns_with(self, owner: str, texts: Sequence[str]) -> tuple[int, ...]:
        """Return the rows of the owner's turns that contain one of the texts."""
        messages = next(table for table in TABLES if table.name == "messages")
        found = {
            key[0] // MESSAGES_PER_TURN
            for text in texts
            for column, method in messages.erased.items()
            for key, _ in self._rows_with(messages, column, method, owner, text)
        }
        return tuple(sorted(found))

    def scrub_answers(self, turns: Sequence[QuotingTurn]) -> None:
        """Erase the answers and tool results of these turns. The messages of people stay."""
        for turn in turns:
            start, end = turn.row * MESSAGES_PER_TURN, (turn.row + 1) * MESSAGES_PER_TURN
            sql = "SELECT id FROM messages WHERE id >= ? AND id < ? AND role <> 'user'"
            for (message,) in list(self._execute(sql, (start, end))):
                self._search.remove(message, message + 1)
            for table in TABLES:
                self._run(table.on_answer, start, end)

    def mark_turns(self, owner: str, texts: Sequence[str]) -> None:
        """Add marks of the texts to the slots of the owner's running turns, whose later writes erase them."""
        marks = [mark for text in texts for mark in self.marks(owner, text)]
        for turn_id, known in list(self._execute("SELECT turn_id, forgotten FROM slots WHERE owner = ?", (owner,))):
            added = to_json([*(from_json(known) if known else ()), *marks])
            self._execute("UPDATE slots SET forgotten = ? WHERE turn_id = ?", (added, turn_id))

    def _run(self, statements: Sequence[str], *values: str | int | None) -> None:
        """Run statements with the first of the values; a single value stands for every parameter."""
        for sql in statements:
            count = sql.count("?")
            self._execute(sql, values * count if len(values) == 1 else values[:count])

    def _scrub_turns(self, table: TextTable, turns: Sequence[int]) -> None:
        is_index = any(isinstance(method, Indexed) for method in table.erased.values())
        for number in turns if is_index or table.on_turn else ():
            start, end = number * MESSAGES_PER_TURN, (number + 1) * MESSAGES_PER_TURN
            if is_index:
                self._search.remove(start, end)
            self._run(table.on_turn, start, end)

    def _discard_files(self, table: TextTable, owner: str, session_id: str | None = None) -> None:
        if any(isinstance(method, DiscardFiles) for method in table.erased.values()):
            discard(self._execute, owner, session_id)

    def _erase(self, entry: TextTable, column: str, method: Method, owner: str, text: str) -> None:
        """Erase the text from one column of the owner's rows, with the method of the registry."""
        match method:
            case Replace():
                self._replace(entry, column, method, owner, text)
            case ReplaceInJson():
                self._replace_in_json(entry, column, method, owner, text)
            case SetColumns(values, _):
                for key, _ in self._rows_with(entry, column, method, owner, text):
                    self._update(entry, values, key)
            case DeleteRow():
                self._delete_rows(entry, column, method, owner, text)
            case DiscardFiles():
                found = self._rows_with(entry, column, method, owner, text)
                discard_rows(self._execute, [(key[0], content) for key, content in found])
            case RunStatement(sql, sessionless):
                self._run((sql,), owner)
                if sessionless:
                    self._delete_rows(entry, column, method, owner, text)
            case ErasedWith() | Indexed():
                pass

    def _replace(self, entry: TextTable, column: str, method: Replace, owner: str, text: str) -> None:
        forms = stored_forms(text, file_name=method.file_name)
        rows = self._candidates(entry, column, method, owner, forms)
        changed = [(row[:-1], erased) for row in rows if (erased := erase_words(row[-1], forms)) != row[-1]]
        for key, erased in changed:
            if entry.name == "messages":
                self._search.replace(key[0], erased, owner)
            self._update(entry, f"{column} = ?", key, (erased,))

    def _replace_in_json(self, entry: TextTable, column: str, method: Method, owner: str, text: str) -> None:
        forms = stored_forms(text)
        records = ((row[:-1], from_json(row[-1])) for row in self._candidates(entry, column, method, owner, forms))
        changed = [(key, erased) for key, record in records if (erased := _without(record, forms)) != record]
        for key, erased in changed:
            self._update(entry, f"{column} = ?", key, (to_json(erased),))

    def _delete_rows(self, entry: TextTable, column: str, method: Method, owner: str, text: str) -> None:
        table, condition = entry.name, _is_row(entry)
        for key, _ in self._rows_with(entry, column, method, owner, text):
            self._execute(f"DELETE FROM {table} WHERE {condition}", key)

    def _update(self, entry: TextTable, values: str, key: Sequence[Any], parameters: Sequence[Any] = ()) -> None:
        table, condition = entry.name, _is_row(entry)
        self._execute(f"UPDATE {table} SET {values} WHERE {condition}", (*parameters, *key))

    def _rows_with(
        self, entry: TextTable, column: str, method: Method, owner: str, text: str
    ) -> list[tuple[tuple[Any, ...], Any]]:
        """Return key and content of the owner's rows that contain the text in this column."""
        table, columns, whose = entry.name, _quoted(entry.key, ", "), entry.owner_condition.value
        is_file_name = isinstance(method, DiscardFiles) or (isinstance(method, Replace) and method.file_name)
        forms = stored_forms(text, file_name=is_file_name)
        if isinstance(method, SetColumns) and method.hyphenated:
            rows = self._execute(f"SELECT {columns}, {column} FROM {table} WHERE {whose}", (owner,))
            return [(row[:-1], row[-1]) for row in rows if contains_words(slug(row[-1]), (slug(text),))]
        if isinstance(method, DeleteRow):
            # The content is binary, which SQL can't search portably.
            rows = self._execute(f"SELECT {columns}, {column} FROM {table} WHERE {whose}", (owner,))
            return [(row[:-1], row[-1]) for row in rows if bytes_contain_words(row[-1], forms)]
        rows = self._candidates(entry, column, method, owner, forms)
        if isinstance(method, ReplaceInJson):
            return [(row[:-1], row[-1]) for row in rows if _json_contains(from_json(row[-1]), forms)]
        return [(row[:-1], row[-1]) for row in rows if contains_words(row[-1], forms)]

    def _candidates(
        self, entry: TextTable, column: str, method: Method, owner: str, forms: Sequence[str]
    ) -> Iterable[tuple[Any, ...]]:
        """Return the owner's rows, key and content, that contain one of the forms, perhaps inside longer words."""
        table, columns, whose = entry.name, _quoted(entry.key, ", "), entry.owner_condition.value
        condition = method.where if isinstance(method, ReplaceInJson) else "true"
        clauses = " OR ".join([f"replace({column}, ?, '') <> {column}"] * len(forms))
        sql = f"SELECT {columns}, {column} FROM {table} WHERE {whose} AND {condition} AND ({clauses})"
        return self._execute(sql, (owner, *forms))

    def _texts(self, sql: str, whose: str) -> tuple[str, ...]:
        """Return the texts of notes. Call it before they are erased."""
        return tuple({row[0] for row in self._execute(sql, (whose,)) if row[0] not in ("", FORGOTTEN)})


def stored_forms(text: str, *, file_name: bool = False) -> tuple[str, ...]:
    """Return the forms in which a text may be stored, the longest first.

    They are: unchanged, on one line, as a file name, and each of these escaped in JSON once and twice (a tool call's
    arguments are JSON inside JSON). Without `file_name`, the file name must have several words: `_HOME`, the file name
    of `$HOME`, may mean something else in other text.
    """
    plain = {text, " ".join(text.split())}
    if text.isascii() and sum(map(str.isalnum, text)) >= _NAME_CHARS_MIN:
        name = safe_file_name(text)
        if file_name or "_" in name.strip("_"):
            plain.add(name)
    escaped = {_json_escaped(each) for each in plain}
    return tuple(sorted((plain | escaped | {_json_escaped(each) for each in escaped}) - {""}, key=len, reverse=True))


def _json_contains(value: Any, forms: Sequence[str]) -> bool:
    return _without(value, forms) != value


def _is_row(entry: TextTable) -> str:
    return _quoted(entry.key, " = ? AND ") + " = ?"


def _quoted(columns: Sequence[str], separator: str) -> str:
    return separator.join(f'"{column}"' for column in columns)


def _json_escaped(text: str) -> str:
    return to_json(text)[1:-1]


def _without(value: Any, forms: Sequence[str]) -> Any:
    """Return a JSON value with the words erased from its strings. Object keys and the ids of child sessions stay."""
    match value:
        case str():
            return erase_words(value, forms)
        case list():
            return [_without(item, forms) for item in cast(list[Any], value)]
        case dict():
            items = cast(dict[str, Any], value).items()
            return {name: item if name == "child" else _without(item, forms) for name, item in items}
        case _:
            return value
