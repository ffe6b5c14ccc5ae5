"""Frozen values and pure rules: nothing in here does I/O, reads a clock or makes an id."""
