-- Who wrote it, by the platform's own id: where several share a conversation, its owner does not say.
ALTER TABLE inbox ADD COLUMN user TEXT NOT NULL DEFAULT '';
