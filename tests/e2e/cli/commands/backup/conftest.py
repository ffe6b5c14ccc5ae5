"""Fixtures of the tests in this folder."""

from __future__ import annotations

from tests.e2e.cli.commands.backup.backup_home import home  # noqa: F401 - fixtures
