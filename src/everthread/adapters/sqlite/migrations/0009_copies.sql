-- Where in a session's log a provider was first told anything: 0 is from its beginning. NULL is not known.
ALTER TABLE cursors ADD COLUMN told_from INTEGER;
-- Up to here the provider is told the past as it stands now: without what was taken back since.
ALTER TABLE cursors ADD COLUMN copy_to INTEGER NOT NULL DEFAULT 0;
