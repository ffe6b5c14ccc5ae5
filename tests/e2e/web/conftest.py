"""Failed authentications in these tests are not slowed down, unless a test says so."""

from __future__ import annotations

import pytest

from everthread.web import auth_failures


@pytest.fixture(autouse=True)
def _undelayed_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_failures, "FIRST_DELAY_S", 0.0)
