"""Hindsight as a memory: a person is a bank, and each entry of a session's log is a document of its own in it."""
