-- Codes that an account was offered within a day: an account and a platform get a limited number of them.
ALTER TABLE pairings ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE pairings ADD COLUMN codes INTEGER NOT NULL DEFAULT 1;
CREATE INDEX pairings_at ON pairings (platform, at);
