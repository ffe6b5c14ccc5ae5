-- The index of words writes what it holds anew whenever so many of its parts are of one size. With twice as many as usual
-- that happens half as often, and a search looks at a few parts more.
INSERT INTO message_words (message_words, rank) VALUES ('automerge', 8);

-- To look whether a reply is one of five is dearer, each time that one is written, than to look that it is none of two.
DROP INDEX replies_open;
CREATE INDEX replies_open ON replies (state, at) WHERE state NOT IN ('sent', 'withheld');
