"""Everthread: an AI agent that never loses the thread."""
