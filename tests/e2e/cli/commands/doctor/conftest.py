"""Fixtures of the tests in this folder."""

from __future__ import annotations

from tests.e2e.cli.commands.doctor.doctor_home import healthy_original, home, server  # noqa: F401 - fixtures
