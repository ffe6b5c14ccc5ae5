"""A messaging platform for tests: a server of its own that tests script, and the adapter that speaks to it."""
