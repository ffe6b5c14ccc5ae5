-- What came with a message, as JSON: what the platform is asked for it by until it is fetched, then where it is kept.
ALTER TABLE inbox ADD COLUMN media TEXT NOT NULL DEFAULT '';
CREATE INDEX inbox_media ON inbox (owner) WHERE media <> '';

-- Files of what was forgotten or pruned, until they are removed.
CREATE TABLE discarded (
    path TEXT PRIMARY KEY
) WITHOUT ROWID;

-- Chats that have another id on their platform than the one by which they are known here.
CREATE TABLE moved_chats (
    platform TEXT NOT NULL,
    chat     TEXT NOT NULL,     -- its id now
    known_as TEXT NOT NULL,
    PRIMARY KEY (platform, chat)
) WITHOUT ROWID;
