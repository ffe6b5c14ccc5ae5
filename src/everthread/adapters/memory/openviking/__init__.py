"""OpenViking as a memory provider: each owner is a user, a session is a session, and a close is a commit.

provider       the memory provider
sessions       messages, commits and forgetting in a session
session_cache  cached state of sessions, and replacing a session by a rewritten copy
memory_files   extracted memories and notes, files of each user
client         requests to the server
codec          names, messages, tags and files; no I/O
"""
