-- The group chat in which a turn was said: its session key without the user. NULL in a private conversation.
ALTER TABLE turns ADD COLUMN chat TEXT;
UPDATE turns SET chat = CASE length(l.key) - length(replace(l.key, ':', ''))
    WHEN 6 THEN rtrim(rtrim(l.key, replace(l.key, ':', '')), ':') ELSE l.key END
FROM log l WHERE l.kind = 'turn' AND l.session_id = turns.session_id AND l.number = turns.number
    AND (l.key LIKE 'agent:%:%:group:%' OR l.key LIKE 'agent:%:%:channel:%' OR l.key LIKE 'agent:%:%:thread:%');

-- The group chat in which a version of a note was written, and who wrote it. A note in a group chat that was written
-- before counts as private. NULL: a person if the version names no turn, otherwise the agent.
ALTER TABLE note_versions ADD COLUMN chat TEXT;
ALTER TABLE note_versions ADD COLUMN author TEXT;

-- The recall that a turn was shown: ids and scores, never text. An id that is empty is not known.
CREATE TABLE recalled (
    turn       INTEGER NOT NULL, -- turns.id
    place      INTEGER NOT NULL,
    source     TEXT NOT NULL,    -- the memory provider, or the tool that searched
    session_id TEXT NOT NULL,
    number     INTEGER,
    note_id    TEXT NOT NULL,
    score      REAL NOT NULL,
    PRIMARY KEY (turn, place)
) WITHOUT ROWID;
CREATE INDEX recalled_session ON recalled (session_id) WHERE session_id <> '';
CREATE INDEX recalled_note ON recalled (note_id) WHERE note_id <> '';
