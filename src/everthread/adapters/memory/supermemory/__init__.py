"""Supermemory as a memory provider: each owner has a namespace, and each turn and note is a document in it.

provider  the memory provider
client    requests to the service
codec     ids, documents and recall items; no I/O
"""
