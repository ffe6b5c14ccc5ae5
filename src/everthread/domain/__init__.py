"""Frozen values and pure rules. No module here performs I/O, reads a clock or creates an id.

Values:
- `errors`: the errors that leave the core
- `media`: attachments of a message
- `model`: session keys, sessions, turns, messages, inbox rows, replies, notes
- `events`: log entries, and the events that memory providers receive

Rules of sessions:
- `titles`: validate and number session titles
- `timezones`: convert between wall-clock times and instants
- `reset_policy`: expire sessions after idle time or daily
- `boundary`: plan the changes that a boundary makes
- `search_terms`: parse queries, match them, and cut excerpts
- `export_format`: lines of an export file, and their validation

Rules of memory:
- `review_window`: the turns that a background review covers
- `note_provenance`: the authors of notes, and the versions that derive from a forgotten session
- `recall_scope`: the part of an owner's memory that a conversation may be shown

Rules of scheduled tasks:
- `cron`: parse cron expressions and find their instants
- `recurrence`: parse recurrences and decide which occurrences are due
- `schedule`: tasks, occurrences and delivery targets

Rules of operation:
- `clock_rules`: stored times under a wall clock that may be wrong
- `pairing`: pairing codes, lockout, names of owners
- `rights`: the tools, skills and models that a person or a group may use
- `api_key`: API keys of the HTTP interface
- `spend`: price of a model call
- `backoff`: delay between attempts
- `circuit_breaker`: pause calls to a failing service
- `tool_definition`: definition of a tool by its MCP server, and its changes in words
- `text_format`: format text, numbers and times for display
"""
