"""Incidents in the store."""

from __future__ import annotations

import pytest

from everthread.store import incidents
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork


def test_only_the_newest_incidents_are_kept(uow: UnitOfWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "KEPT_MAX", 2)
    for number in range(4):
        uow.incidents.add(Incident(float(number), "test", None, f"problem {number}"))
    assert [incident.text for incident in uow.incidents.newest(10)] == ["problem 3", "problem 2"]
