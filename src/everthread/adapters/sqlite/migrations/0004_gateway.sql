-- Commands come in as messages do, and are carried out in their order.
ALTER TABLE inbox ADD COLUMN command INTEGER NOT NULL DEFAULT 0;

-- A long reply goes out in parts; so many are out.
ALTER TABLE replies ADD COLUMN parts INTEGER NOT NULL DEFAULT 0;
DROP INDEX replies_open;
CREATE INDEX replies_open ON replies (state, at) WHERE state IN ('draft', 'ready', 'sending', 'ambiguous', 'failed');

-- The model that was chosen at a key, if it is not the usual one.
CREATE TABLE chosen_models (
    key   TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    model TEXT NOT NULL
) WITHOUT ROWID;

-- Where a person is, to go on there with what was begun elsewhere.
CREATE INDEX bindings_owner ON bindings (owner);
