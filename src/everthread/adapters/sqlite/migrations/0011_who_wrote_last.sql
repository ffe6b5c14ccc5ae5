-- Who wrote last at a key: without it, all that has come in since is gone through, on the loop, for one who has been silent.
CREATE INDEX inbox_who ON inbox (key) WHERE user <> '';
