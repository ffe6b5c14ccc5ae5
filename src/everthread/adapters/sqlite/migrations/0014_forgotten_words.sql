-- Facts forgotten while the turn runs, as JSON marks: the turn's later writes are erased by them.
ALTER TABLE slots ADD COLUMN forgotten TEXT NOT NULL DEFAULT '';
-- Marks of a fact's words in all forms, as JSON, to find them without knowing them; empty in older rows.
ALTER TABLE tombstones ADD COLUMN marks TEXT NOT NULL DEFAULT '';
-- Number of requests: what came back and was forgotten again counts again.
ALTER TABLE tombstones ADD COLUMN times INTEGER NOT NULL DEFAULT 1;
DROP INDEX tombstones_owner;
CREATE INDEX tombstones_owner ON tombstones (owner, times);
