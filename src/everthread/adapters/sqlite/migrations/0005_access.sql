-- Who may write from where, beside those whom the settings name.
CREATE TABLE guests (
    platform TEXT NOT NULL,
    user     TEXT NOT NULL,
    owner    TEXT NOT NULL,
    name     TEXT NOT NULL DEFAULT '',
    at       REAL NOT NULL,
    PRIMARY KEY (platform, user)
) WITHOUT ROWID;
CREATE INDEX guests_owner ON guests (owner);

-- Strangers who were given a code. Only what it is made into can be read here.
CREATE TABLE pairings (
    platform   TEXT NOT NULL,
    user       TEXT NOT NULL,
    code_hash  TEXT NOT NULL,
    name       TEXT NOT NULL DEFAULT '',
    at         REAL NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (platform, user)
) WITHOUT ROWID;

-- Wrong codes, by who tried them.
CREATE TABLE wrong_codes (
    scope        TEXT PRIMARY KEY,
    count        INTEGER NOT NULL,
    locked_until REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Keys of the HTTP interface. Only what they are made into can be read here.
CREATE TABLE tokens (
    token_hash TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    name       TEXT NOT NULL,
    at         REAL NOT NULL,
    used_at    REAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX tokens_name ON tokens (owner, name);
