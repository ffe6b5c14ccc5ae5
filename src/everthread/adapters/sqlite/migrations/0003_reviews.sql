-- Which turns of a session a background review looks at, has looked at, or was kept from looking at.
CREATE TABLE reviews (
    session_id TEXT NOT NULL,
    from_turn  INTEGER NOT NULL,
    to_turn    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    holder     TEXT NOT NULL DEFAULT '',
    fence      INTEGER NOT NULL DEFAULT 0,
    due_at     REAL NOT NULL,
    PRIMARY KEY (session_id, from_turn, to_turn)
) WITHOUT ROWID;
CREATE INDEX reviews_open ON reviews (due_at) WHERE state IN ('waiting', 'running');
