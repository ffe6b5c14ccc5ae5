"""Honcho as a memory provider: each owner is a peer, and Honcho draws conclusions about them.

provider  the memory provider
sessions  our sessions and notes as sessions of Honcho
client    requests to the server
codec     names, messages and recall items; no I/O
"""
