"""Test the fake of the Mem0 platform with the official client library, which also reads data written by Everthread."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.fakes.mem0 import FakeMem0
from tests.servers.environments import environment

from everthread.adapters.memory.mem0.provider import Mem0
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionKey, SessionRef

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

REF = SessionRef("s1", 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, "ann")
SCRIPT = Path(__file__).with_name("mem0_client_script.py")


def test_the_official_client_reads_our_entries_and_sees_the_same_faults(tmp_path: Path) -> None:
    async def write(address: str) -> None:
        provider = Mem0()
        await provider.initialize(mode="platform", url=address, api_key="k-1234")
        await provider.sync_turn("I keep bees", "How many?", ref=REF, delivery=Delivery("k", 1), turn=1, at=1.0)
        await provider.shutdown()

    python = environment("mem0") / "bin" / "python"
    with FakeMem0(key="k-1234", takes_in_s=0.2, deletes_s=0.2) as fake:
        asyncio.run(write(fake.address))
        env = {"PATH": os.environ["PATH"], "MEM0_TELEMETRY": "False", "MEM0_DIR": str(tmp_path)}
        command = [python, SCRIPT, fake.address, "everthread-main__ann"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=env)
    said = json.loads(done.stdout)
    [ours] = said["ours"]["results"]
    assert (ours["memory"], ours["run_id"], ours["metadata"]["turn"]) == ("I keep bees", "s1", 1)
    assert said["accepted"]["status"] == "PENDING"
    assert said["at_once"] == []
    assert (said["word_for_word"], said["drawn"]) == (["I keep ants"] * 2, ["I keep ants"])
    assert said["without_run"] == []
    assert (said["no_filter"], said["no_field"], said["delete_nothing"]) == ("ValidationError",) * 3
    assert said["delete_unknown"] == "MemoryNotFoundError"
    assert said["updated"] == ["I keep wasps"]
    assert (said["deleted_at_once"], said["deleted"]) == (["I keep ants"] * 2, [])
