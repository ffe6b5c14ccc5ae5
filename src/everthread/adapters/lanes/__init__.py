"""Lanes: who drains what, when."""
