-- The definitions of MCP tools that the user approved. A tool that differs from its pin needs approval again.
CREATE TABLE tool_pins (
    server     TEXT NOT NULL,
    tool       TEXT NOT NULL,     -- the name on its server
    identity   TEXT NOT NULL,     -- hash of the server's program and arguments, or of its URL
    digest     TEXT NOT NULL,     -- hash of name, description, parameters and annotations
    definition TEXT NOT NULL,     -- description, parameters and annotations as JSON
    at         REAL NOT NULL,
    PRIMARY KEY (server, tool)
);
