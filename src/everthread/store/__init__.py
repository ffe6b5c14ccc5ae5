"""The store: tables with portable SQL, and the unit of work that holds them all.

unit_of_work: the `Store` interface, and `UnitOfWork`, one transaction over all tables.
database: the port that a database engine implements.
sql: conversion between values and columns.
inbox, attachments: incoming messages and their files.
failed_updates: updates whose handling failed, for a retry.
slots: running turns and their tool calls.
turns: committed turns, views of a lineage, prompt prefixes.
sessions, session_list: sessions, bindings and boundaries; lists of them.
event_log, activity: the logs of sessions; the feed of an owner.
cursors: delivery of the logs to memory providers.
outbox: outgoing replies.
spend: the cost of model calls.
notes, reviews, compression_pauses: memory, its background review, and failed compressions.
recalled: the recall that each turn was shown, as ids.
recall_scope: the part of an owner's memory that a session may be shown.
search_index: full-text search and recall; the only module that names FTS5.
leases: leases, timers and queued hooks.
incidents: errors that `doctor` reports.
error_details: full texts of log records.
schedules: scheduled tasks.
pairings, api_keys: access.
tool_pins: definitions of MCP tools that the user approved.
erasure, archive: forgetting, import and pruning.
"""
