"""Mem0's platform in a whole Everthread, against a fake of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import fake_back_ends
from tests.back_end import BackEnd
from tests.bad_day import BadDay
from tests.fault_days import FaultDays
from tests.house import CLI, until
from tests.mem0_held import held
from tests.provider_scenarios import ProviderScenarios

from everthread import config
from everthread.bootstrap import Runtime
from everthread.domain.model import Inbound, Message, Role
from everthread.testing.fake_mem0 import FakeMem0


class OnMem0:
    infer = True

    @pytest.fixture
    def back_end(self) -> Iterator[BackEnd]:
        with fake_back_ends.mem0(infer=self.infer) as back_end:
            yield back_end


class TestABadDay(OnMem0, BadDay):
    pass


class TestDaysOfFaults(OnMem0, FaultDays):
    """Word for word: what comes twice is kept twice, if nobody looks."""

    infer = False


class TestScenarios(OnMem0, ProviderScenarios):
    pass


async def test_it_is_chosen_by_its_name_with_a_key_from_dotenv(tmp_path: Path) -> None:
    with FakeMem0(key="k-platform-1234") as fake:
        told = f'mode = "platform"\nurl = "{fake.address}"\n'
        (tmp_path / "config.toml").write_text(f'[memory]\nproviders = ["mem0"]\n[memory.mem0]\n{told}')
        (tmp_path / ".env").write_text("MEM0_API_KEY=k-platform-1234\n")
        (tmp_path / ".env").chmod(0o600)
        async with Runtime(config.load(str(tmp_path), {})) as runtime:
            await runtime.start()
            await runtime.lifecycle.accept(Inbound(CLI, "me", "I keep bees"))
            ticket = await runtime.lifecycle.begin_turn(CLI)
            assert ticket is not None
            await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "I keep bees")], "")
            await until(lambda: held(fake.memories))
            assert await runtime.memory.health() == {"mem0": "ok"}
        assert {one["user_id"] for one in fake.memories} == {"everthread-main__me"}
