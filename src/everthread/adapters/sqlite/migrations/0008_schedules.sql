-- What is to be done at times, by itself.
CREATE TABLE schedules (
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    name       TEXT NOT NULL,
    recurrence TEXT NOT NULL,       -- as it was written
    zone       TEXT NOT NULL,
    anchor     REAL NOT NULL,       -- when it was written: intervals are counted from there
    content    TEXT NOT NULL,       -- what is asked
    target     TEXT NOT NULL,       -- where the answer goes, as JSON
    model      TEXT NOT NULL,
    tools      TEXT,                -- JSON; none: the usual ones
    missed     TEXT NOT NULL,
    continues  INTEGER NOT NULL,
    spend      REAL,
    state      TEXT NOT NULL,
    next_at    REAL                 -- none: paused, or over
) WITHOUT ROWID;
CREATE UNIQUE INDEX schedules_name ON schedules (owner, name);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;

-- Each time that something was to be done: there can't be two rows of one time.
CREATE TABLE occurrences (
    schedule_id TEXT NOT NULL,
    due_at      REAL NOT NULL,
    owner       TEXT NOT NULL,
    state       TEXT NOT NULL,
    inbox_id    INTEGER,
    session_id  TEXT,
    ended_at    REAL,
    problem     TEXT NOT NULL DEFAULT '',
    attempts    INTEGER NOT NULL DEFAULT 0,
    retry_at    REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, due_at)
) WITHOUT ROWID;
CREATE INDEX occurrences_open ON occurrences (due_at) WHERE state IN ('waiting', 'running', 'delivering');

-- What goes out with a reply, until it is out.
CREATE TABLE reply_files (
    turn_id TEXT PRIMARY KEY,
    owner   TEXT NOT NULL,
    name    TEXT NOT NULL,
    content BLOB NOT NULL
) WITHOUT ROWID;
ALTER TABLE replies ADD COLUMN file TEXT NOT NULL DEFAULT '';
