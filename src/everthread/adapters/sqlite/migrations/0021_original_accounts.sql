-- The accounts that wrote a message first which somebody asks again with /retry: a JSON array, empty for a new message.
ALTER TABLE inbox ADD COLUMN original_accounts TEXT NOT NULL DEFAULT '';
-- The messages of a committed turn, to find who wrote them.
CREATE INDEX inbox_turn ON inbox (turn_id) WHERE turn_id IS NOT NULL;
