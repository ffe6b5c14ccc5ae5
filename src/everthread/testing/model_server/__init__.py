"""Stub server of models.

| module | contents |
|---|---|
| `http` | minimal HTTP/1.1 server, base of all stub servers |
| `server` | `ModelServer`: scripted replies, also as a process |
| `validation` | request validation rules of real endpoints |
| `replies` | scripted replies and their encoding in each protocol |
"""
