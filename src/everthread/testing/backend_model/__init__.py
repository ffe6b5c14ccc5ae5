"""Stub model endpoint for memory back ends.

| module | contents |
|---|---|
| `server` | OpenAI-compatible HTTP server: embeddings, chat, faults on demand |
| `extraction` | chat replies: facts extracted from a conversation, in the format of each back end |
| `embedding` | embeddings from hashed bags of words |
"""
