"""Fixtures of the tests in this folder."""

from __future__ import annotations

from tests.e2e.cli.commands.gateway.gateway_home import core, url  # noqa: F401 - fixtures
from tests.e2e.cli.commands.logs_home import home, server  # noqa: F401 - fixtures
