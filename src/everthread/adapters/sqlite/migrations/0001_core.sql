-- Numbers must never be given twice. Where rows are deleted, AUTOINCREMENT sees to that; elsewhere it would only cost a
-- page of each commit.

-- The conversation -------------------------------------------------------------------------------------------------

CREATE TABLE sessions (
    id            TEXT PRIMARY KEY,
    owner         TEXT NOT NULL,
    key           TEXT NOT NULL,
    kind          TEXT NOT NULL,
    cause         TEXT NOT NULL,
    opened_at     REAL NOT NULL,
    parent_id     TEXT,
    title         TEXT,
    title_fold    TEXT,             -- what makes a title unique per owner
    title_base    TEXT,             -- the same without its lineage number
    generation    INTEGER NOT NULL,
    ended_at      REAL,
    end_reason    TEXT,
    active_at     REAL NOT NULL,
    floor         INTEGER NOT NULL, -- turns up to here are covered by a summary
    base_turn     INTEGER NOT NULL, -- turns up to here are the parent's
    base_seq      INTEGER NOT NULL, -- as of this position of the parent's log
    summary_id    TEXT,
    last_turn     INTEGER NOT NULL,
    log_seq       INTEGER NOT NULL,
    dirty_seq     INTEGER NOT NULL,
    closed_seq    INTEGER NOT NULL,
    forgotten_seq INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX sessions_title ON sessions (owner, title_fold) WHERE title_fold IS NOT NULL;
CREATE INDEX sessions_title_base ON sessions (owner, title_base) WHERE title_base IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner);

CREATE TABLE summaries (
    session_id TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    content    TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE bindings (
    key        TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    session_id TEXT,
    epoch      INTEGER NOT NULL,
    pending    TEXT,                -- why the key is on no session since an expiry
    kind       TEXT NOT NULL,       -- what the key's sessions are for
    generation INTEGER              -- the session's, so that where a key is stands in one row
) WITHOUT ROWID;
CREATE INDEX bindings_session ON bindings (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE boundaries (
    id           INTEGER PRIMARY KEY,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    owner        TEXT NOT NULL,
    from_session TEXT,
    to_session   TEXT,
    epoch        INTEGER NOT NULL,
    actor        TEXT NOT NULL,
    at           REAL NOT NULL
);

CREATE TABLE serving (
    holder     TEXT NOT NULL,
    session_id TEXT NOT NULL,
    key        TEXT NOT NULL,
    PRIMARY KEY (session_id, holder)
) WITHOUT ROWID;

CREATE TABLE turns (
    id         INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    number     INTEGER NOT NULL,
    turn_id    TEXT NOT NULL,
    owner      TEXT NOT NULL,
    status     TEXT NOT NULL,
    at         REAL NOT NULL,
    UNIQUE (session_id, number)
);

-- A message's id is its turn's id times 4096 plus its place in the turn, so that a turn's messages are a range.
CREATE TABLE messages (
    id      INTEGER PRIMARY KEY,
    owner   TEXT NOT NULL,
    role    TEXT NOT NULL,
    content TEXT NOT NULL,
    extra   TEXT                    -- tool calls, reasoning and the like, as JSON
);

-- Turns that a session's view no longer shows since a position of its log: its own or inherited ones.
CREATE TABLE hidden (
    session_id TEXT NOT NULL,
    number     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

CREATE TABLE prefixes (
    session_id TEXT NOT NULL,
    number     INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    content    BLOB NOT NULL,
    at         REAL NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

-- A running turn ---------------------------------------------------------------------------------------------------

CREATE TABLE slots (
    turn_id    TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    key        TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    holder     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    fate       TEXT NOT NULL,
    inbox_id   INTEGER NOT NULL,
    begun_at   REAL NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX slots_live ON slots (session_id) WHERE fate = 'live';

CREATE TABLE tool_rows (
    turn_id   TEXT NOT NULL,
    call_id   TEXT NOT NULL,
    owner     TEXT NOT NULL,
    name      TEXT NOT NULL,
    arguments TEXT NOT NULL,
    position  INTEGER NOT NULL,
    state     TEXT NOT NULL,
    result    TEXT,
    PRIMARY KEY (turn_id, call_id)
) WITHOUT ROWID;

CREATE TABLE inbox (
    id          INTEGER PRIMARY KEY,
    key         TEXT NOT NULL,
    owner       TEXT NOT NULL,
    platform    TEXT NOT NULL,
    account     TEXT NOT NULL,
    update_id   TEXT,
    content     TEXT NOT NULL,      -- blank once the message stands in its turn
    accepted_at REAL NOT NULL,
    state       TEXT NOT NULL,
    session_id  TEXT,
    turn_id     TEXT
);
CREATE UNIQUE INDEX inbox_update ON inbox (platform, account, update_id) WHERE update_id IS NOT NULL;
CREATE INDEX inbox_open ON inbox (key, id) WHERE state IN ('waiting', 'running');

CREATE TABLE replies (
    turn_id             TEXT PRIMARY KEY,
    key                 TEXT NOT NULL,
    session_id          TEXT NOT NULL,
    owner               TEXT NOT NULL,
    content             TEXT NOT NULL,
    state               TEXT NOT NULL,
    at                  REAL NOT NULL,
    platform_message_id TEXT
) WITHOUT ROWID;
CREATE INDEX replies_open ON replies (state, at) WHERE state IN ('draft', 'ready', 'ambiguous');

CREATE TABLE spend (
    id            INTEGER PRIMARY KEY,
    owner         TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    turn_id       TEXT NOT NULL,
    model         TEXT NOT NULL,
    reserved      REAL NOT NULL,    -- dollars
    settled       REAL,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    at            REAL NOT NULL
);
CREATE INDEX spend_owner ON spend (owner, at);

-- Memory -----------------------------------------------------------------------------------------------------------

CREATE TABLE log (
    pos        INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    at         REAL NOT NULL,
    number     INTEGER,
    detail     TEXT,
    UNIQUE (session_id, seq)
);

CREATE TABLE providers (
    name          TEXT PRIMARY KEY,
    scanned_pos   INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    open_until    REAL NOT NULL,
    last_error    TEXT,
    last_error_at REAL
) WITHOUT ROWID;

CREATE TABLE cursors (
    provider    TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    replay      INTEGER NOT NULL,
    replay_last INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    due_at      REAL,
    error       TEXT,
    PRIMARY KEY (provider, session_id)
) WITHOUT ROWID;
CREATE INDEX cursors_due ON cursors (provider, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE redeliveries (
    provider   TEXT NOT NULL,
    session_id TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    replay     INTEGER NOT NULL,
    error      TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    due_at     REAL,                -- none: parked
    PRIMARY KEY (provider, session_id, seq, replay)
) WITHOUT ROWID;
CREATE INDEX redeliveries_due ON redeliveries (provider, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE notes (
    note_id TEXT PRIMARY KEY,
    owner   TEXT NOT NULL,
    target  TEXT NOT NULL,
    version INTEGER NOT NULL,
    live    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX notes_owner ON notes (owner, target) WHERE live;

CREATE TABLE note_versions (
    note_id    TEXT NOT NULL,
    version    INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    target     TEXT NOT NULL,
    action     TEXT NOT NULL,
    content    TEXT NOT NULL,
    session_id TEXT NOT NULL,
    turn_id    TEXT,
    at         REAL NOT NULL,
    PRIMARY KEY (note_id, version)
) WITHOUT ROWID;
CREATE INDEX note_versions_session ON note_versions (session_id);

CREATE TABLE projections (
    owner  TEXT NOT NULL,
    target TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (owner, target)
) WITHOUT ROWID;

CREATE TABLE tombstones (
    kind     TEXT NOT NULL,
    identity TEXT NOT NULL,
    owner    TEXT NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (kind, identity)
) WITHOUT ROWID;
CREATE INDEX tombstones_owner ON tombstones (owner);

-- Lanes ------------------------------------------------------------------------------------------------------------

CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE timers (
    name   TEXT PRIMARY KEY,
    due_at REAL NOT NULL,
    key    TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX timers_due ON timers (due_at);

CREATE TABLE hook_calls (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    key        TEXT NOT NULL,
    hook       TEXT NOT NULL,
    session_id TEXT NOT NULL,
    platform   TEXT NOT NULL,
    detail     TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    at         REAL NOT NULL
);

CREATE TABLE incidents (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         REAL NOT NULL,
    source     TEXT NOT NULL,
    session_id TEXT,
    content    TEXT NOT NULL
);

-- Search -----------------------------------------------------------------------------------------------------------

-- Fed with prepared text (words as they are, unspaced scripts as pairs of characters); `scope` is one token per owner, so
-- that nobody's search ever reads another's postings. `text` comes first: FTS5 spends two bytes a posting on any other column.
CREATE VIRTUAL TABLE message_words USING fts5 (
    text, scope,
    content = '', contentless_delete = 1,
    tokenize = "unicode61 remove_diacritics 2 categories 'L* N* M*'"
);
INSERT INTO message_words (message_words, rank) VALUES ('rank', 'bm25(1.0, 0.0)');

-- One row: the messages of turns up to this one are in the index.
CREATE TABLE indexed (
    turn INTEGER NOT NULL
);
INSERT INTO indexed (turn) VALUES (0);
