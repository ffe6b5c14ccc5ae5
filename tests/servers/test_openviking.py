"""OpenViking keeps the contract of every provider: the real server, with a stub for its model."""

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.back_end import BackEnd
from tests.bad_day import BadDay
from tests.house import CLI
from tests.house import House as Process
from tests.provider_scenarios import ProviderScenarios
from tests.servers import openviking_house
from tests.servers.door import Door
from tests.servers.openviking_house import House
from tests.tidy import tidy

from everthread.adapters.memory.openviking import OpenViking
from everthread.bootstrap import Runtime
from everthread.config import load
from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import ChatType, Inbound, Message, Role, SessionKey, SessionRef
from everthread.memory.journal import Limits
from everthread.testing.fault_proxy import FaultProxy
from everthread.testing.provider_contract import EffectsOf, Faults, ProviderContract

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

LIMITS = Limits(attempt_s_max=4.0, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
KEEPS = r"POST /api/v1/sessions/[^/]+/messages/batch"


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with openviking_house.openviking() as house:
        yield house


@pytest.fixture
def account() -> str:
    """An account of this test alone."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def door(house: House) -> Iterator[Door]:
    with Door(house.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: Door, account: str) -> dict[str, Any]:
    return {"url": door.address, "api_key": openviking_house.KEY, "account": account}


class TestOpenViking(ProviderContract):
    @pytest.fixture
    def settings(self, door: Door, account: str) -> dict[str, Any]:
        return {"url": door.address, "api_key": openviking_house.KEY, "account": account}

    @pytest.fixture
    def provider(self) -> OpenViking:
        return tidy(OpenViking)

    @pytest.fixture
    def effects(self, house: House, account: str) -> EffectsOf:
        return lambda provider: house.held(account)

    @pytest.fixture
    def faults(self, door: Door) -> Faults:
        return door

    @pytest.fixture
    def settles_s(self) -> float:
        return 5.0
