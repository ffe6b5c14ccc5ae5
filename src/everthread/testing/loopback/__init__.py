"""Messaging platform for tests.

| module | contents |
|---|---|
| `protocol` | JSON messages between bots, tests and the server |
| `server` | the platform's server, a process of its own |
| `platform` | the adapter that connects a gateway to the server |
| `users` | control client for tests: users, faults, message log |
"""
