"""Deliveries that a plugin has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.adapters.memory.hermes_bridge.acknowledged import KEPT_MAX, DeliveryLog

pytestmark = pytest.mark.timeout(60)


# --- Delivery log ----------------------------------------------------------------------------------------------------


def test_the_delivery_log_keeps_a_limited_number_of_entries_for_each_session(tmp_path: Path) -> None:
    deliveries = DeliveryLog(tmp_path / "told.db")
    for seq in range(1, KEPT_MAX + 50):
        deliveries.add(f"k{seq}", "s1", seq, "life1")
    assert deliveries.is_acknowledged("k1")
    deliveries.mark_safe("s1", "life1")
    assert not deliveries.is_acknowledged("k1")
    assert deliveries.is_acknowledged(f"k{KEPT_MAX + 49}")
    assert deliveries.remove_lost("s1", "life2") is None
    deliveries.add("k900", "s1", 900, "life2")
    assert (deliveries.remove_lost("s1", "life3"), deliveries.is_acknowledged("k900")) == (900, False)
    deliveries.close()
    assert (tmp_path / "told.db").stat().st_mode & 0o777 == 0o600
