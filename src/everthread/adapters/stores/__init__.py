"""Stores: where sessions, turns, logs and cursors live."""
