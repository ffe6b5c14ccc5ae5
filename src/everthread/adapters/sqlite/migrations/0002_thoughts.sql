-- What a model thought before it made a tool call, and which model: some do not go on without it.
ALTER TABLE tool_rows ADD COLUMN thought TEXT;
ALTER TABLE tool_rows ADD COLUMN thinker TEXT;
