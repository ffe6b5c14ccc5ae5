-- Where to look for a part of which nobody knows whether it went out; and, by the newest first, what is known to be out.
ALTER TABLE replies ADD COLUMN sent_after TEXT NOT NULL DEFAULT '';
CREATE INDEX replies_out ON replies (at) WHERE platform_message_id <> '';
ALTER TABLE inbox ADD COLUMN message_id TEXT NOT NULL DEFAULT '';
