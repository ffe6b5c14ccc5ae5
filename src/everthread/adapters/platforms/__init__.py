"""Messaging platforms."""
