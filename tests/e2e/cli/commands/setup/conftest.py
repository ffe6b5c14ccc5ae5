"""Fixtures of the tests in this folder."""

from __future__ import annotations

from tests.e2e.cli.commands.setup.setup_home import home, no_keys, server  # noqa: F401 - fixtures
