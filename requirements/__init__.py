"""Locks: exact versions and SHA-256 digests of everything that is installed for development, tests and `setup`."""
