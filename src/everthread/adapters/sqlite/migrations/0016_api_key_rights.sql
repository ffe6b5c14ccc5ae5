-- Expiry and rights of API keys. `automatic` is the key that the first start of a gateway creates.
ALTER TABLE tokens ADD COLUMN expires_at REAL;
ALTER TABLE tokens ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN automatic INTEGER NOT NULL DEFAULT 0;

-- One row from the first key on, for good: after the last one is revoked, none is created automatically.
CREATE TABLE tokens_first (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at REAL NOT NULL
);
INSERT INTO tokens_first (id, at) SELECT 1, min(at) FROM tokens HAVING count(*) > 0;
