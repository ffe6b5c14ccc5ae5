"""The HTTP interface: an OpenAI-compatible API, sessions, events, webhooks and metrics.

The modules, in the order of data flow:

- `server`: runs the HTTP server; `connections` limits its connections.
- `app`: the table of routes and their dispatch; `openapi` describes them.
- `request`: the context of a request, with its limits; `auth` authenticates it, `ownership` finds its session.
- `completions`: `/v1`; `conversation` answers in a session, `schemas` has the types.
- `sessions`, `events`, `webhooks`, `metrics`: the other routes.
- `responses`: JSON and streams; `errors` translates errors for clients.
"""

from everthread.web.server import Web

__all__ = ["Web"]
