"""Registry of every column and file that can hold a person's words: how the words are found, and how they are erased.

`Scrubber` erases the columns and `HomeFiles` the files that this registry declares, and nothing else. Tests compare it
with the schema and with a home directory that uses every feature: an undeclared text column or file fails them. See
docs/internals/forgetting.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum

from msgspec import Struct

# --- Columns ---------------------------------------------------------------------------------------------------------


class OwnerCondition(StrEnum):
    """SQL condition that selects the rows of an owner. Its parameter is the owner."""

    BY_COLUMN = "owner = ?"
    BY_SESSION = "session_id IN (SELECT id FROM sessions WHERE owner = ?)"
    BY_SESSION_OR_NONE = "(session_id IS NULL OR session_id IN (SELECT id FROM sessions WHERE owner = ?))"
    """Rows without a session are included: they may quote anybody."""
    BY_COLUMN_OR_NONE = "owner IN (?, '')"
    """Rows without an owner are included: they may quote anybody."""
    BY_ANYBODY = "? <> ''"
    """The rows belong to no owner, and may quote any of them."""


class Replace(Struct, frozen=True):
    """Replace the words with `[forgotten]`; with `file_name`, also where they are written as a file name."""

    file_name: bool = False


class ReplaceInJson(Struct, frozen=True):
    """Replace the words in the string values of a JSON document. `where` is an SQL condition on the rows."""

    where: str = "true"


class SetColumns(Struct, frozen=True):
    """Set columns in rows that contain the words; `values` is the SET clause of the UPDATE.

    With `hyphenated`, the column holds hyphenated names such as `water-plants`, and only whole words match.
    """

    values: str
    hyphenated: bool = False


class DeleteRow(Struct, frozen=True):
    """Delete rows that contain the words."""


class DiscardFiles(Struct, frozen=True):
    """Remove the attachments whose metadata, the JSON in this column, contains the words.

    All attachments of a session or an owner are removed with it.
    """


class RunStatement(Struct, frozen=True):
    """Run a statement on all rows of the owner, whether or not they contain the words: the text may paraphrase them.

    With `sessionless`, rows without a session that contain the words are deleted too.
    """

    sql: str
    sessionless: bool = False


class ErasedWith(Struct, frozen=True):
    """Erased together with `column`, by the method of that column."""

    column: str


class Indexed(Struct, frozen=True):
    """A full-text index: updated together with the messages, emptied with their turns, and purged afterwards."""


Method = Replace | ReplaceInJson | SetColumns | DeleteRow | DiscardFiles | RunStatement | ErasedWith | Indexed


class TextTable(Struct, frozen=True):
    """The text columns of a table. `erased` can hold a person's words, `exempt` can't, for the stated reason."""

    name: str
    key: tuple[str, ...] = ()
    erased: Mapping[str, Method] = {}
    exempt: Mapping[str, str] = {}
    owner_condition: OwnerCondition = OwnerCondition.BY_COLUMN
    on_session: tuple[str, ...] = ()
    """SQL statements that forget a session; every parameter is its id."""
    on_session_of_operator: tuple[str, ...] = ()
    """The same, only for a session of the owner of the installation, whom everything without an owner concerns."""
    on_turn: tuple[str, ...] = ()
    """SQL statements that forget a turn of a session; the parameters are the range of the ids of its messages."""
    on_answer: tuple[str, ...] = ()
    """SQL statements that forget the answer of a turn, with parameters as for `on_turn`. Messages of people stay."""
    on_delegated: tuple[str, ...] = ()
    """SQL statements that forget delegated work; every parameter is the key of its session."""
    on_descendant: tuple[str, ...] = ()
    """SQL statements that erase, from a descendant of a forgotten session, text that derives from that session. The
    parameters are the descendant's id and the folded base of the forgotten session's title.
    """
    on_owner: tuple[str, ...] = ()
    """SQL statements that forget an owner, after all sessions; every parameter is the owner."""
    on_note: tuple[str, ...] = ()
    """SQL statements that forget a fact, besides erasing its words; the parameters are its owner and note."""
    on_note_version: tuple[str, ...] = ()
    """SQL statements that forget one version of a note; the parameters are its owner, note and version."""
    on_notes: tuple[str, ...] = ()
    """SQL statements that run after notes of an owner were forgotten with a session; every parameter is the owner."""
    kept_with_session: Mapping[str, str] = {}
    """Columns that no statement erases when a session is forgotten, each with the reason."""
    kept_with_owner: Mapping[str, str] = {}
    """Columns that no statement erases when an owner is forgotten, each with the reason."""


ID = "an id that the program or a platform assigned"
KEY = "a session key: names and ids of a platform"
OWNER = "an owner's name: stays as metadata"
VALUE = "one of a fixed set of values"
NAME = "a name from the settings or the program"
HASH = "a hash"
SESSIONLESS = "belongs to no session"
EVERY_SESSION = "all sessions of the owner are forgotten before"
_THEIRS = "session_id IN (SELECT id FROM sessions WHERE owner = ?)"
_ITS_TURNS = (
    "turn_id IN (SELECT turn_id FROM turns WHERE session_id = ? UNION SELECT turn_id FROM slots WHERE session_id = ?)"
)
_WITHHELD = "state = CASE WHEN state IN ('draft', 'ready', 'sending') THEN 'withheld' ELSE state END"
_NO_TITLE = "title = NULL, title_fold = NULL, title_base = NULL"


def _exempt(reason: str, *columns: str) -> dict[str, str]:
    return dict.fromkeys(columns, reason)


TABLES: tuple[TextTable, ...] = (
    TextTable(
        "messages",
        ("id",),
        {"content": Replace(), "extra": ReplaceInJson()},
        {"owner": OWNER, "role": VALUE},
        on_turn=("UPDATE messages SET content = '[forgotten]', extra = NULL WHERE id >= ? AND id < ?",),
        on_answer=(
            "UPDATE messages SET content = '[forgotten]', extra = NULL WHERE id >= ? AND id < ? AND role <> 'user'",
        ),
        kept_with_owner=_exempt(EVERY_SESSION, "content", "extra"),
    ),
    TextTable("message_words", erased={"text": Indexed()}, exempt={"scope": HASH}),
    TextTable(
        "sessions",
        ("id",),
        {"title": SetColumns(_NO_TITLE), "title_fold": ErasedWith("title"), "title_base": ErasedWith("title")},
        {**_exempt(ID, "id", "parent_id", "summary_id"), **_exempt(VALUE, "kind", "cause", "end_reason")}
        | {"owner": OWNER, "key": KEY},
        on_session=(f"UPDATE sessions SET {_NO_TITLE} WHERE id = ?",),
        # A branch or continuation has the title with a number.
        on_descendant=(f"UPDATE sessions SET {_NO_TITLE} WHERE id = ? AND title_base = ?",),
        kept_with_owner=_exempt(EVERY_SESSION, "title"),
    ),
    TextTable(
        "summaries",
        ("session_id",),
        {"content": Replace()},
        {"session_id": ID, "owner": OWNER},
        on_session=("UPDATE summaries SET content = '[forgotten]' WHERE session_id = ?",),
        on_descendant=("UPDATE summaries SET content = '[forgotten]' WHERE session_id = ?",),
        kept_with_owner=_exempt(EVERY_SESSION, "content"),
    ),
    TextTable(
        "prefixes",
        ("session_id", "number"),
        {"content": DeleteRow()},
        {"session_id": ID, "owner": OWNER},
        on_session=("DELETE FROM prefixes WHERE session_id = ?",),
        on_descendant=("DELETE FROM prefixes WHERE session_id = ?",),
        on_owner=("DELETE FROM prefixes WHERE owner = ?",),
        # Every prefix that was built since may quote the notes.
        on_notes=("DELETE FROM prefixes WHERE owner = ?",),
    ),
    TextTable(
        "tool_rows",
        ("turn_id", "call_id"),
        {
            "arguments": Replace(),
            "result": Replace(),
            # Reasoning is signed, and a model rejects it after a change. So it is removed.
            "thought": RunStatement("UPDATE tool_rows SET thought = NULL, thinker = NULL WHERE owner = ?"),
        },
        {**_exempt(ID, "turn_id", "call_id"), **_exempt(NAME, "name", "thinker"), "owner": OWNER, "state": VALUE},
        on_session=(f"DELETE FROM tool_rows WHERE {_ITS_TURNS}",),
        kept_with_owner=_exempt(EVERY_SESSION, "arguments", "result", "thought"),
    ),
    TextTable(
        "inbox",
        ("id",),
        {"content": Replace(), "media": DiscardFiles()},
        {
            **_exempt(ID, "account", "update_id", "session_id", "turn_id", "message_id", "user", "original_accounts"),
            **{"key": KEY, "owner": OWNER, "platform": NAME, "state": VALUE},
        },
        # Delegated work that has not started: its key is unbound, so no process would ever start it.
        on_delegated=(
            "UPDATE inbox SET content = '[forgotten]', state = 'set_aside' WHERE key = ? AND state = 'waiting'",
        ),
        kept_with_session={"content": "a message is emptied when its turn ends"},
        on_owner=(
            "UPDATE inbox SET content = '[forgotten]', "
            "state = CASE state WHEN 'waiting' THEN 'set_aside' ELSE state END WHERE owner = ?",
        ),
    ),
    TextTable(
        "failed_updates",
        ("id",),
        {"content": ReplaceInJson()},
        {
            **_exempt(ID, "account", "update_id", "user"),
            **{"platform": NAME, "owner": OWNER, "problem": "the class of an error, without its text"},
        },
        kept_with_session=_exempt(SESSIONLESS, "content"),
        # Before the guests are deleted: the owner of an update may be known only through them.
        on_owner=(
            "DELETE FROM failed_updates WHERE owner = ?",
            "DELETE FROM failed_updates WHERE EXISTS (SELECT 1 FROM guests g "
            'WHERE g.platform = failed_updates.platform AND g."user" = failed_updates."user" AND g.owner = ?)',
        ),
    ),
    TextTable("discarded", ("path",), exempt={"path": "the path of a file that is being removed; deleted with it"}),
    TextTable(
        "replies",
        ("turn_id",),
        {"content": Replace(), "file": Replace(file_name=True)},
        {
            **_exempt(ID, "turn_id", "session_id", "platform_message_id", "sent_after"),
            **{"key": KEY, "owner": OWNER, "state": VALUE},
        },
        on_session=(f"UPDATE replies SET content = '[forgotten]', file = '', {_WITHHELD} WHERE {_ITS_TURNS}",),
        on_answer=(
            f"UPDATE replies SET content = '[forgotten]', file = '', {_WITHHELD} "
            "WHERE turn_id = (SELECT turn_id FROM turns WHERE id = ? / 4096)",
        ),
        # Text that is in no turn: answers to commands, and unsent replies.
        on_owner=(
            f"UPDATE replies SET content = '', file = '', {_WITHHELD} "
            "WHERE owner = ? AND (content <> '' OR file <> '')",
        ),
    ),
    TextTable(
        "reply_files",
        ("turn_id",),
        {"name": Replace(file_name=True), "content": DeleteRow()},
        {"turn_id": ID, "owner": OWNER},
        on_session=(f"DELETE FROM reply_files WHERE {_ITS_TURNS}",),
        on_answer=("DELETE FROM reply_files WHERE turn_id = (SELECT turn_id FROM turns WHERE id = ? / 4096)",),
        on_owner=("DELETE FROM reply_files WHERE owner = ?",),
    ),
    TextTable(
        "note_versions",
        ("note_id", "version"),
        {"content": Replace()},
        {**_exempt(ID, "note_id", "session_id", "turn_id"), **_exempt(VALUE, "target", "action", "author")}
        | {"owner": OWNER, "chat": KEY},
        on_session=("UPDATE note_versions SET content = '[forgotten]' WHERE session_id = ?",),
        on_note_version=(
            "UPDATE note_versions SET content = '[forgotten]' WHERE owner = ? AND note_id = ? AND version = ?",
        ),
        on_owner=("UPDATE note_versions SET content = '[forgotten]' WHERE owner = ?",),
    ),
    TextTable(
        "notes",
        ("note_id",),
        exempt={"note_id": ID, "owner": OWNER, "target": VALUE},
        on_session=(
            "UPDATE notes SET live = false WHERE live AND EXISTS (SELECT 1 FROM note_versions v "
            "WHERE v.note_id = notes.note_id AND v.version = notes.version AND v.session_id = ?)",
        ),
        on_note=("UPDATE notes SET live = false WHERE owner = ? AND note_id = ?",),
        on_owner=("UPDATE notes SET live = false WHERE owner = ?",),
    ),
    TextTable(
        "projections",
        ("owner", "target"),
        # Digests of a note file and of its entries, from which a short entry can be guessed. `forget` keeps the digest
        # of the whole file until the file is rewritten.
        {"digest": RunStatement("DELETE FROM projections WHERE owner = ?")},
        {"owner": OWNER, "target": VALUE},
        kept_with_session={"digest": "the synchronisation that follows writes the files again"},
        on_owner=("DELETE FROM projections WHERE owner = ?",),
    ),
    TextTable(
        "log",
        ("pos",),
        # A request to forget keeps its words until every provider has received it; see `remove_delivered_request_text`.
        {"detail": ReplaceInJson("kind = 'delegation'")},
        {"session_id": ID, "owner": OWNER, "kind": VALUE, "key": KEY},
        on_session=("UPDATE log SET detail = NULL WHERE session_id = ? AND kind = 'delegation'",),
        kept_with_owner={"detail": f"{EVERY_SESSION}; `scrub_owner` removes the words of requests to forget"},
    ),
    TextTable(
        "schedules",
        ("id",),
        {"content": Replace(), "name": SetColumns("name = id", hyphenated=True)},
        {
            **{"id": ID, "owner": OWNER, "target": "the address of a chat or a folder", "model": NAME, "tools": NAME},
            **_exempt(VALUE, "recurrence", "zone", "missed", "state"),
        },
        kept_with_session=_exempt(SESSIONLESS, "content", "name"),
        on_owner=("DELETE FROM schedules WHERE owner = ?",),
    ),
    TextTable(
        "occurrences",
        ("schedule_id", "due_at"),
        {"problem": Replace()},
        {"schedule_id": ID, "owner": OWNER, "state": VALUE, "session_id": ID},
        on_session=("UPDATE occurrences SET problem = '[forgotten]' WHERE session_id = ? AND problem <> ''",),
        on_owner=("DELETE FROM occurrences WHERE owner = ?",),
    ),
    # Tables with error messages, which may paraphrase what an owner wrote.
    TextTable(
        "incidents",
        ("id",),
        {"content": RunStatement(f"DELETE FROM incidents WHERE {_THEIRS}", sessionless=True)},
        {"source": NAME, "session_id": ID},
        owner_condition=OwnerCondition.BY_SESSION_OR_NONE,
        on_session=("DELETE FROM incidents WHERE session_id = ?",),
        # Rows without a session mostly concern the operator: only those that quote a note of the owner are deleted.
        on_owner=(f"DELETE FROM incidents WHERE {_THEIRS}",),
    ),
    TextTable(
        "error_details",
        ("id",),
        {"content": RunStatement("DELETE FROM error_details WHERE owner = ?", sessionless=True)},
        {"reference": ID, "logger": NAME, "session_id": ID, "owner": OWNER},
        owner_condition=OwnerCondition.BY_COLUMN_OR_NONE,
        on_session=(
            "DELETE FROM error_details WHERE session_id = ?",
            "DELETE FROM error_details WHERE session_id IS NULL "
            "AND at >= (SELECT opened_at FROM sessions WHERE id = ?) "
            "AND owner = (SELECT owner FROM sessions WHERE id = ?)",
            "DELETE FROM error_details WHERE session_id IS NULL AND owner = '' AND EXISTS (SELECT 1 FROM sessions s "
            "WHERE s.id = ? AND error_details.at >= s.opened_at AND (REPLACE(content, s.id, '') <> content "
            "OR REPLACE(content, s.key, '') <> content OR REPLACE(content, s.owner, '') <> content))",
        ),
        # It is not known which session rows without an owner quote, but none that was opened after them.
        on_session_of_operator=(
            "DELETE FROM error_details WHERE session_id IS NULL AND owner = '' "
            "AND at >= (SELECT opened_at FROM sessions WHERE id = ?)",
        ),
        on_owner=("DELETE FROM error_details WHERE owner = ?",),
    ),
    TextTable(
        "rests",
        ("session_id",),
        {"problem": RunStatement(f"UPDATE rests SET problem = '' WHERE {_THEIRS}")},
        {"session_id": ID, "model": NAME},
        owner_condition=OwnerCondition.BY_SESSION,
        on_session=("DELETE FROM rests WHERE session_id = ?",),
        on_owner=(f"UPDATE rests SET problem = '' WHERE {_THEIRS}",),
    ),
    TextTable(
        "cursors",
        ("provider", "session_id"),
        {"error": RunStatement(f"UPDATE cursors SET error = NULL WHERE error IS NOT NULL AND {_THEIRS}")},
        {"provider": NAME, "session_id": ID},
        owner_condition=OwnerCondition.BY_SESSION,
        on_session=("UPDATE cursors SET error = NULL WHERE session_id = ?",),
        on_owner=(f"UPDATE cursors SET error = NULL WHERE error IS NOT NULL AND {_THEIRS}",),
    ),
    TextTable(
        "redeliveries",
        ("provider", "session_id", "seq", "replay"),
        {"error": RunStatement(f"UPDATE redeliveries SET error = '' WHERE {_THEIRS}")},
        {"provider": NAME, "session_id": ID},
        owner_condition=OwnerCondition.BY_SESSION,
        on_session=("UPDATE redeliveries SET error = '' WHERE session_id = ?",),
        on_owner=(f"UPDATE redeliveries SET error = '' WHERE {_THEIRS}",),
    ),
    TextTable(
        "providers",
        ("name",),
        {"last_error": RunStatement("UPDATE providers SET last_error = NULL WHERE ? <> ''")},
        {"name": NAME},
        owner_condition=OwnerCondition.BY_ANYBODY,
        on_session=("UPDATE providers SET last_error = NULL WHERE ? <> ''",),
        on_owner=("UPDATE providers SET last_error = NULL WHERE ? <> ''",),
    ),
    # Access: pairings refer to guests, and are deleted before them.
    TextTable(
        "pairings",
        ("platform", "user"),
        exempt={
            "platform": NAME,
            "user": ID,
            "code_hash": HASH,
            "name": "the name of a stranger, who owns nothing yet",
        },
        on_owner=(
            "DELETE FROM pairings WHERE EXISTS (SELECT 1 FROM guests g WHERE g.platform = pairings.platform "
            'AND g."user" = pairings."user" AND g.owner = ?)',
            "DELETE FROM pairings WHERE platform || ':' || \"user\" = ?",
        ),
    ),
    TextTable(
        "guests",
        ("platform", "user"),
        {"name": Replace()},
        {"platform": NAME, "user": ID, "owner": OWNER},
        kept_with_session=_exempt(SESSIONLESS, "name"),
        on_owner=("DELETE FROM guests WHERE owner = ?",),
    ),
    TextTable(
        "quota_counters",
        exempt={"owner": OWNER},
        on_owner=("DELETE FROM quota_counters WHERE owner = ?",),
    ),
    TextTable("wrong_codes", ("scope",), exempt={"scope": ID}, on_owner=("DELETE FROM wrong_codes WHERE scope = ?",)),
    TextTable(
        "tokens",
        ("token_hash",),
        exempt={"token_hash": HASH, "owner": OWNER, "name": "the operator's label of an API key, which revokes it"},
        on_owner=("DELETE FROM tokens WHERE owner = ?",),
    ),
    TextTable("tokens_first"),
    TextTable(
        "chosen_models",
        ("key",),
        exempt={"key": KEY, "owner": OWNER, "model": NAME},
        on_owner=("DELETE FROM chosen_models WHERE owner = ?",),
    ),
    TextTable(
        "tool_pins",
        ("server", "tool"),
        # The hashes stay, so that a change of the tool is still noticed.
        {"definition": SetColumns("definition = '{}'")},
        {**_exempt(NAME, "server", "tool"), **_exempt(HASH, "identity", "digest")},
        owner_condition=OwnerCondition.BY_ANYBODY,
        kept_with_session={"definition": "the text of an MCP server, which belongs to no session"},
        on_owner=("UPDATE tool_pins SET definition = '{}' WHERE ? <> ''",),
    ),
    # Tables without a person's words.
    TextTable(
        "reviews",
        exempt={"session_id": ID, "state": VALUE, "holder": ID},
        on_session=("DELETE FROM reviews WHERE session_id = ?",),
    ),
    TextTable("turns", exempt={"session_id": ID, "turn_id": ID, "owner": OWNER, "status": VALUE, "chat": KEY}),
    TextTable(
        "slots",
        exempt={**_exempt(ID, "turn_id", "session_id", "holder"), "key": KEY, "owner": OWNER, "fate": VALUE}
        | {"forgotten": "lengths and hashes of forgotten words"},
    ),
    TextTable("bindings", exempt={"key": KEY, "owner": OWNER, "session_id": ID, "pending": VALUE, "kind": VALUE}),
    TextTable(
        "boundaries",
        exempt={**_exempt(ID, "from_session", "to_session"), "kind": VALUE, "key": KEY, "owner": OWNER, "actor": NAME},
    ),
    TextTable("serving", exempt={"holder": ID, "session_id": ID, "key": KEY}),
    TextTable("hidden", exempt={"session_id": ID}),
    TextTable(
        "recalled",
        exempt={
            "source": NAME,
            "session_id": "the id of a session in the store",
            "note_id": "the id of a note in the store",
        },
        # Rows of other sessions that name this one stay: they find the answers that may quote it.
        on_session=("DELETE FROM recalled WHERE turn IN (SELECT id FROM turns WHERE session_id = ?)",),
        on_owner=("DELETE FROM recalled WHERE turn IN (SELECT id FROM turns WHERE owner = ?)",),
    ),
    TextTable("spend", exempt={"owner": OWNER, "session_id": ID, "turn_id": ID, "model": NAME}),
    TextTable(
        "tombstones",
        exempt={"kind": VALUE, "identity": "an id or a hash", "owner": OWNER}
        | {"marks": "lengths and hashes of forgotten words"},
    ),
    TextTable("leases", exempt={"name": NAME, "holder": ID}),
    TextTable("timers", exempt={"name": NAME, "key": KEY}),
    TextTable(
        "hook_calls",
        exempt={"key": KEY, "hook": NAME, "session_id": ID, "platform": NAME, "detail": "numbers and ids for a hook"},
    ),
    TextTable("indexed"),
    TextTable("moved_chats", exempt={"platform": NAME, "chat": ID, "known_as": ID}),
    TextTable("database_id", exempt={"id": ID}),
    TextTable("migrations", exempt={"name": NAME, "checksum": HASH}),
)


# --- Files -----------------------------------------------------------------------------------------------------------


class FileMethod(Enum):
    """Treatment of a file when a fact is forgotten."""

    BY_TABLES = "the store: its columns are declared above"
    SYNCHRONISE = "written again from the store, and by nobody else"
    REPLACE = "the words are replaced by [forgotten]"
    REMOVE_LINES = "the lines of the session or person are overwritten with spaces, and those that may quote them"
    DISCARD = "a file of the owner that contains the words is removed"
    BY_PROVIDER = "the data of a memory provider, which receives the request to forget"
    KEEP = "written by hand and never changed; a file that contains the words is reported"
    NO_WORDS = "holds no words of a person"


class HomeFile(Struct, frozen=True):
    """Files of a home directory, selected by a glob pattern; `**` matches any number of folders."""

    pattern: str
    method: FileMethod
    about: str
    lock: str = ""
    """Lock file that every writer of these files holds."""


FILES: tuple[HomeFile, ...] = (
    HomeFile("everthread.db", FileMethod.BY_TABLES, "the store; freed pages are overwritten"),
    HomeFile("everthread.db-wal", FileMethod.BY_TABLES, "the write-ahead log; truncated"),
    HomeFile("everthread.db-shm", FileMethod.NO_WORDS, "the index of the write-ahead log"),
    HomeFile("everthread.db.sentinel", FileMethod.NO_WORDS, "id and size of the database, paths of its backups"),
    HomeFile("everthread.db.sentinel.lock", FileMethod.NO_WORDS, "the lock of the sentinel"),
    HomeFile("everthread.db.sentinel.*.new", FileMethod.NO_WORDS, "a sentinel that a killed process did not finish"),
    HomeFile("memory/**/MEMORY.md", FileMethod.SYNCHRONISE, "the notes of an owner"),
    HomeFile("memory/**/USER.md", FileMethod.SYNCHRONISE, "the same"),
    HomeFile("memory/**/*.md.new", FileMethod.SYNCHRONISE, "a note file that a killed process did not finish; removed"),
    HomeFile("memory/**/*.md.*.new", FileMethod.SYNCHRONISE, "the same"),
    HomeFile("memory/**/*.md", FileMethod.KEEP, "the user's files beside the note files"),
    HomeFile("skills/.old/lock", FileMethod.NO_WORDS, "the lock of the skills"),
    HomeFile("skills/**/*", FileMethod.REPLACE, "skills with their versions and their change log", "skills/.old/lock"),
    HomeFile("media/**/*", FileMethod.DISCARD, "attachments"),
    HomeFile("logs/everthread.log*", FileMethod.REMOVE_LINES, "the log"),
    HomeFile("logs/gateway.out", FileMethod.REMOVE_LINES, "the output of a gateway in the background"),
    HomeFile("logs/.lock", FileMethod.NO_WORDS, "the lock of the log"),
    HomeFile("logs/.forgotten", FileMethod.NO_WORDS, "hashes of forgotten sessions and persons, and when"),
    HomeFile("logs/.forgotten.new", FileMethod.NO_WORDS, "such a list that a killed process did not finish"),
    HomeFile("providers/**/*", FileMethod.BY_PROVIDER, "the files of memory providers"),
    HomeFile("SOUL.md", FileMethod.KEEP, "the identity in the prompt"),
    HomeFile("AGENTS.md", FileMethod.KEEP, "the standing rules"),
    HomeFile("GUESTS.md", FileMethod.KEEP, "the standing rules for everyone except the owner"),
    HomeFile("config.toml", FileMethod.KEEP, "the settings"),
    HomeFile("mcp.json", FileMethod.KEEP, "the MCP servers"),
    HomeFile("files/**/*", FileMethod.KEEP, "the user's files for scheduled tasks, and their results"),
    HomeFile("before-restore-*/**/*", FileMethod.KEEP, "the home before a backup was restored: a backup"),
    HomeFile(".env", FileMethod.NO_WORDS, "secrets"),
    HomeFile("local.token", FileMethod.NO_WORDS, "the automatic API token"),
    HomeFile("local.token.*.new", FileMethod.NO_WORDS, "one that a killed process did not finish; opens nothing"),
    HomeFile("trust.json*", FileMethod.NO_WORDS, "approved plugins, and paths and digests of projects' skills"),
    HomeFile("gateway.lock", FileMethod.NO_WORDS, "the lock of the gateway"),
    HomeFile("gateway.json", FileMethod.NO_WORDS, "the state of the gateway: counts and connection errors"),
    HomeFile("processes/*", FileMethod.NO_WORDS, "locks of running processes"),
    HomeFile("bots/*", FileMethod.NO_WORDS, "locks of bots"),
    HomeFile("hermes-import.json", FileMethod.NO_WORDS, "ids of imported sessions"),
    HomeFile("hermes/**/*", FileMethod.NO_WORDS, "programs for Hermes Agent plugins"),
    HomeFile("models/**/*", FileMethod.NO_WORDS, "local models"),
)
