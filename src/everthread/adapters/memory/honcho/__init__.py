"""Honcho as a memory: each person is a peer with conversations, and Honcho draws conclusions about them."""
