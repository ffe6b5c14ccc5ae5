-- Codes that an account was offered within a day: an account and a platform get a limited number of them.
ALTER TABLE pairings ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE pairings ADD COLUMN codes INTEGER NOT NULL DEFAULT 1;
CREATE INDEX pairings_at ON pairings (platform, at);

-- The size of the attachments of a message: as announced until they are fetched, then as stored.
ALTER TABLE inbox ADD COLUMN media_bytes INTEGER NOT NULL DEFAULT 0;

-- Forks of a person within a day are counted here. Only forks are in the index.
CREATE INDEX boundaries_forks ON boundaries (owner, at) WHERE kind = 'branch';

-- The notes of a person are counted by it once.
CREATE INDEX note_versions_owner ON note_versions (owner);

-- Counters of the persons who have a quota. A row is made from the data when it is first needed; from then on the
-- triggers below keep it up to date, whatever changes the data. An owner without a row costs nothing.
CREATE TABLE quota_counters (
    owner        TEXT NOT NULL PRIMARY KEY,
    sessions     INTEGER NOT NULL,   -- chats that are not forgotten, without continuations
    stored_bytes INTEGER NOT NULL,   -- of the messages of all turns and of all versions of notes
    media_bytes  INTEGER NOT NULL    -- of the attachments
) WITHOUT ROWID;

CREATE TRIGGER quota_session_added AFTER INSERT ON sessions
WHEN NEW.kind = 'chat' AND NEW.cause <> 'compression' AND NEW.forgotten_seq IS NULL
BEGIN
    UPDATE quota_counters SET sessions = sessions + 1 WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_session_forgotten AFTER UPDATE OF forgotten_seq ON sessions
WHEN (OLD.forgotten_seq IS NULL) <> (NEW.forgotten_seq IS NULL)
    AND NEW.kind = 'chat' AND NEW.cause <> 'compression'
BEGIN
    UPDATE quota_counters SET sessions = sessions + (NEW.forgotten_seq IS NULL) - (OLD.forgotten_seq IS NULL)
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_session_removed AFTER DELETE ON sessions
WHEN OLD.kind = 'chat' AND OLD.cause <> 'compression' AND OLD.forgotten_seq IS NULL
BEGIN
    UPDATE quota_counters SET sessions = sessions - 1 WHERE owner = OLD.owner;
END;

CREATE TRIGGER quota_message_added AFTER INSERT ON messages
BEGIN
    UPDATE quota_counters
    SET stored_bytes = stored_bytes + octet_length(NEW.content) + COALESCE(octet_length(NEW.extra), 0)
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_message_erased AFTER UPDATE OF content, extra ON messages
BEGIN
    UPDATE quota_counters
    SET stored_bytes = stored_bytes + octet_length(NEW.content) + COALESCE(octet_length(NEW.extra), 0)
        - octet_length(OLD.content) - COALESCE(octet_length(OLD.extra), 0)
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_message_removed AFTER DELETE ON messages
BEGIN
    UPDATE quota_counters
    SET stored_bytes = stored_bytes - octet_length(OLD.content) - COALESCE(octet_length(OLD.extra), 0)
    WHERE owner = OLD.owner;
END;

CREATE TRIGGER quota_note_added AFTER INSERT ON note_versions
BEGIN
    UPDATE quota_counters SET stored_bytes = stored_bytes + octet_length(NEW.content) WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_note_erased AFTER UPDATE OF content ON note_versions
BEGIN
    UPDATE quota_counters SET stored_bytes = stored_bytes + octet_length(NEW.content) - octet_length(OLD.content)
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_note_removed AFTER DELETE ON note_versions
BEGIN
    UPDATE quota_counters SET stored_bytes = stored_bytes - octet_length(OLD.content) WHERE owner = OLD.owner;
END;

CREATE TRIGGER quota_media_added AFTER INSERT ON inbox
WHEN NEW.media <> ''
BEGIN
    UPDATE quota_counters SET media_bytes = media_bytes + NEW.media_bytes WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_media_changed AFTER UPDATE OF media, media_bytes ON inbox
WHEN OLD.media_bytes <> 0 OR NEW.media_bytes <> 0
BEGIN
    UPDATE quota_counters
    SET media_bytes = media_bytes + CASE NEW.media WHEN '' THEN 0 ELSE NEW.media_bytes END
        - CASE OLD.media WHEN '' THEN 0 ELSE OLD.media_bytes END
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER quota_media_removed AFTER DELETE ON inbox
WHEN OLD.media <> ''
BEGIN
    UPDATE quota_counters SET media_bytes = media_bytes - OLD.media_bytes WHERE owner = OLD.owner;
END;
