"""The gateway: serve many people on many platforms, and reply where they wrote.

An update is stored before it is acknowledged, and a reply before it is sent, so a dead process leaves all work to the
next one. The modules, in the order of data flow:

- `server`: starts and stops everything below, listens on the platforms, and measures the lag of the event loop.
- `inbound`: handles an update; `access` admits its sender, `rate_limit` limits them, `routing` finds the session key.
- `pairing`: offers pairing codes to strangers.
- `attachments`: fetches files and voice messages.
- `worker`: serves the inbox of each key; `command_runner` runs its commands, `approvals` asks about its tool calls.
- `turn_events`: relays the events of a turn; `streaming` shows the answer while it is written.
- `outbox`: sends replies; `outbox_rows` has their states, `message_split` splits them, `delivery_check` finds lost
  parts.
- `scheduler`: runs scheduled tasks; `schedule_output` delivers their results to files and webhooks.
"""
