-- Why a session is not compressed for now, or not any more: every process on it is to know.
CREATE TABLE rests (
    session_id TEXT PRIMARY KEY,
    model      TEXT NOT NULL,
    poor       INTEGER NOT NULL,
    cool_until REAL NOT NULL,
    problem    TEXT NOT NULL
) WITHOUT ROWID;
