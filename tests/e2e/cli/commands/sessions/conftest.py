"""Fixtures of the tests in this folder."""

from __future__ import annotations

from tests.e2e.cli.commands.sessions.sessions_home import sample, sample_original  # noqa: F401 - fixtures
