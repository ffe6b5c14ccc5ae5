"""The log file of a plugin's output."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from everthread.adapters.memory.hermes_bridge.plugin_log import BYTES_MAX, PluginLog

pytestmark = pytest.mark.timeout(60)


async def test_the_log_of_a_plugin_does_not_grow_beyond_its_bound(tmp_path: Path) -> None:
    reader = asyncio.StreamReader()
    for _ in range(40):
        reader.feed_data(b"x" * 50_000)
    reader.feed_eof()
    await PluginLog(tmp_path / "plugin.log").follow(reader)
    sizes = [os.stat(tmp_path / name).st_size for name in os.listdir(tmp_path)]
    assert len(sizes) <= 2
    assert sum(sizes) <= 2 * (BYTES_MAX + 65536)
