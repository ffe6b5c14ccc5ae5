-- The full texts of log records. They may quote anybody, so the log file has only their references.
CREATE TABLE error_details (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    reference  TEXT NOT NULL,
    at         REAL NOT NULL,
    logger     TEXT NOT NULL,
    session_id TEXT,
    owner      TEXT NOT NULL,     -- empty if it is not known whose it is
    content    TEXT NOT NULL
);
CREATE INDEX error_details_by_reference ON error_details (reference);
