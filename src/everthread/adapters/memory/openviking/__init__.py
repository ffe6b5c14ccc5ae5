"""OpenViking as a memory: each person is a user there, a session is a session, and a close is a commit."""
