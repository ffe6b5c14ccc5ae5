"""Hindsight as a memory provider: each owner has a bank, and each log entry is a document in it.

provider  the memory provider
client    requests to the server
codec     log entries as documents, and recalled facts as recall items; no I/O
"""
