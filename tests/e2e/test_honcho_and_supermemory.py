"""Honcho and Supermemory with the whole runtime, against fakes of their servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import fake_backends as fake_back_ends
from tests.contract.test_honcho import held as held_by_honcho
from tests.contract.test_supermemory import held as held_by_supermemory
from tests.fakes.honcho import FakeHoncho
from tests.fakes.supermemory import FakeSupermemory
from tests.provider_backend import ProviderBackend
from tests.provider_faults import ProviderFaults
from tests.provider_outage import ProviderOutage
from tests.provider_scenarios import ProviderScenarios
from tests.runtime import CLI, until

from everthread.bootstrap.memory_providers import make_providers
from everthread.bootstrap.runtime import Runtime
from everthread.config import settings as config
from everthread.domain.errors import BadConfig
from everthread.domain.model import Inbound, Message, Role


class OnHoncho:
    @pytest.fixture
    def back_end(self) -> Iterator[ProviderBackend]:
        with fake_back_ends.honcho() as back_end:
            yield back_end


class OnSupermemory:
    @pytest.fixture
    def back_end(self) -> Iterator[ProviderBackend]:
        with fake_back_ends.supermemory() as back_end:
            yield back_end


class TestABadDayWithHoncho(OnHoncho, ProviderOutage):
    pass


class TestABadDayWithSupermemory(OnSupermemory, ProviderOutage):
    pass


class TestScenariosWithHoncho(OnHoncho, ProviderScenarios):
    pass


class TestDaysOfFaultsWithHoncho(OnHoncho, ProviderFaults):
    pass


class TestDaysOfFaultsWithSupermemory(OnSupermemory, ProviderFaults):
    pass


class TestScenariosWithSupermemory(OnSupermemory, ProviderScenarios):
    pass


BOTH = """\
[memory]
providers = ["builtin", "honcho", "supermemory"]
[memory.honcho]
url = "{honcho}"
[memory.supermemory]
url = "{supermemory}"
api_key_env = "OTHER_KEY"
"""


async def test_both_providers_run_together_with_keys_from_dotenv_alone(tmp_path: Path) -> None:
    with FakeHoncho(key="k-honcho-1234") as honcho, FakeSupermemory(key="k-other-1234") as supermemory:
        text = BOTH.format(honcho=honcho.address, supermemory=supermemory.address)
        (tmp_path / "config.toml").write_text(text)
        (tmp_path / ".env").write_text("HONCHO_API_KEY=k-honcho-1234\nOTHER_KEY=k-other-1234\n")
        (tmp_path / ".env").chmod(0o600)
        settings = config.load(str(tmp_path), {})
        async with Runtime(settings) as runtime:
            await runtime.start()
            await runtime.lifecycle.accept(Inbound(CLI, "me", "I keep bees"))
            ticket = await runtime.lifecycle.begin_turn(CLI)
            assert ticket is not None
            await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "I keep bees")], "")
            await until(lambda: held_by_honcho(honcho) and held_by_supermemory(supermemory))
            assert await runtime.memory.health() == {"builtin": "ok", "honcho": "ok", "supermemory": "ok"}
        assert list(honcho.workspaces) == ["everthread-main"]
        assert "k-" not in repr(settings)


def test_a_missing_supermemory_key_is_reported_with_the_place_to_set_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[memory]\nproviders = ["supermemory"]\n')
    with pytest.raises(BadConfig, match="SUPERMEMORY_API_KEY"):
        make_providers(config.load(str(tmp_path), {}))


def test_a_key_in_the_configuration_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[memory.honcho]\napi_key = "k-honcho-1234"\n')
    with pytest.raises(BadConfig) as failure:
        config.load(str(tmp_path), {})
    assert "k-honcho-1234" not in str(failure.value)
