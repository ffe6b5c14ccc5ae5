"""Hindsight keeps the contract of every provider: the real server, on a PostgreSQL of its own."""

import json
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.servers.door import Door
from tests.servers.hindsight_house import House, hindsight
from tests.tidy import tidy

from everthread.adapters.memory.hindsight import Hindsight
from everthread.testing.provider_contract import EffectsOf, Faults, ProviderContract
from everthread.testing.recording import Effect

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

KINDS = {"work": "delegation"}
KEEPS = r"POST /v1/default/banks/[^/]+/memories"


def asked(address: str, path: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(address + path, method=method), timeout=30) as answer:
        return json.loads(answer.read())


def documents(address: str, prefix: str) -> list[dict[str, Any]]:
    """All that the server holds in the banks whose names begin so, oldest first."""
    found: list[dict[str, Any]] = []
    for bank in asked(address, "/v1/default/banks")["banks"]:
        if bank["bank_id"].startswith(prefix):
            path = f"/v1/default/banks/{quote(bank['bank_id'], safe='')}/documents"
            ids = [one["id"] for one in asked(address, f"{path}?limit=1000")["items"]]
            found += [asked(address, f"{path}/{quote(each, safe='')}") for each in ids]
    return sorted(found, key=lambda one: (one["created_at"], one["id"]))


def held(address: str, prefix: str) -> list[Effect]:
    effects: list[Effect] = []
    for one in documents(address, prefix):
        about = one["document_metadata"]
        turn = int(about["turn"]) if "turn" in about else None
        kind = KINDS.get(about["kind"], about["kind"])
        effects.append(Effect(about["session"], kind, one["original_text"], turn=turn))
    return effects


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with hindsight() as house:
        yield house


@pytest.fixture
def prefix() -> str:
    """Banks of this test alone."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def door(house: House) -> Iterator[Door]:
    with Door(house.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: Door, prefix: str) -> dict[str, Any]:
    return {"address": door.address, "bank": prefix, "profile": "main"}


class TestHindsight(ProviderContract):
    @pytest.fixture
    def settings(self, door: Door, prefix: str) -> dict[str, Any]:
        return {"address": door.address, "bank": prefix, "profile": "main"}

    @pytest.fixture
    def provider(self) -> Hindsight:
        return tidy(Hindsight)

    @pytest.fixture
    def effects(self, house: House, prefix: str) -> EffectsOf:
        return lambda provider: held(house.address, prefix)

    @pytest.fixture
    def faults(self, door: Door) -> Faults:
        return door

    @pytest.fixture
    def settles_s(self) -> float:
        return 5.0
