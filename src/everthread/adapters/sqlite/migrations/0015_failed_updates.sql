-- The id of this database, by which a file that takes its place is recognised. A backup has the same id.
CREATE TABLE database_id (
    id TEXT NOT NULL
);
INSERT INTO database_id (id) VALUES (lower(hex(randomblob(16))));

-- Updates of platforms whose handling failed unexpectedly, until a retry succeeds.
CREATE TABLE failed_updates (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    platform  TEXT NOT NULL,
    account   TEXT NOT NULL,
    update_id TEXT NOT NULL,
    "user"    TEXT NOT NULL,
    owner     TEXT NOT NULL,     -- empty if it is not known whose it is
    content   TEXT NOT NULL,     -- the update as JSON
    problem   TEXT NOT NULL,     -- the kind of the last error; quotes nothing
    attempts  INTEGER NOT NULL DEFAULT 0,
    at        REAL NOT NULL,
    retry_at  REAL NOT NULL
);
CREATE UNIQUE INDEX failed_updates_once ON failed_updates (platform, account, update_id) WHERE update_id <> '';
