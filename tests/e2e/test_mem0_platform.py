"""The Mem0 platform with the whole runtime, against a fake of its server."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import fake_backends as fake_back_ends
from tests.e2e.chat_home import Terminal
from tests.fakes.mem0 import FakeMem0
from tests.mem0_entries import stored_entries
from tests.provider_backend import ProviderBackend
from tests.provider_faults import ProviderFaults
from tests.provider_outage import ProviderOutage
from tests.provider_scenarios import ProviderScenarios
from tests.runtime import CLI, until

from everthread.bootstrap.runtime import Runtime
from everthread.config import settings as config
from everthread.domain.model import Inbound, Message, Role


class OnMem0:
    infer = True

    @pytest.fixture
    def back_end(self) -> Iterator[ProviderBackend]:
        with fake_back_ends.mem0(infer=self.infer) as back_end:
            yield back_end


class TestABadDay(OnMem0, ProviderOutage):
    pass


class TestDaysOfFaults(OnMem0, ProviderFaults):
    """Store texts verbatim, so that a delivery repeated without a check is stored twice."""

    infer = False


class TestScenarios(OnMem0, ProviderScenarios):
    pass


async def test_the_provider_is_selected_by_name_with_a_key_from_dotenv(tmp_path: Path) -> None:
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
            await until(lambda: stored_entries(fake.memories))
            assert await runtime.memory.health() == {"mem0": "ok"}
        assert {one["user_id"] for one in fake.memories} == {"everthread-main__me"}


def test_the_wizard_asks_only_for_the_settings_of_the_chosen_mode_and_tests_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with FakeMem0(key="k-platform-1234") as fake:
        terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup", "memory"])
        try:
            for question, answer in (
                ("Memory providers .numbers", "builtin mem0"),
                (r"mem0: The library on this machine, or the hosted platform \[library\]", "cloud"),
                ("must be one of library, platform", "platform"),
                ("mem0: Address of the platform", fake.address),
                ("mem0: API key of the platform", "k-platform-1234"),
                (r"mem0: Extract facts; .* \[true\]", "no"),
            ):
                terminal.expect(question)
                terminal.type(f"{answer}\n")
            terminal.expect("mem0: ok")
            terminal.expect("Memory providers in use: builtin, mem0.")
            assert terminal.ended() == 0
            assert "embeds" not in terminal.seen
            assert "k-platform-1234" not in terminal.seen
        finally:
            terminal.close()
        told = tomllib.loads((home / "config.toml").read_text())["memory"]["mem0"]
        assert told == {"mode": "platform", "url": fake.address, "infer": False}
    assert (home / ".env").read_text() == "MEM0_API_KEY=k-platform-1234\n"
