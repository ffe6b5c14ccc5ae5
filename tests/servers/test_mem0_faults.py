"""Mem0 while everything goes wrong: the real library, whose model does, and the platform's fake behind a proxy."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mem0_days import Day, lived
from tests.mem0_held import held
from tests.servers.mem0_house import House, mem0

from everthread.testing.fake_mem0 import FakeMem0
from everthread.testing.fault_proxy import FaultProxy

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with mem0(tmp_path / "mem0") as house:
        yield house


def check(day: Day, capsys: pytest.CaptureFixture[str]) -> None:
    turns = sum(len(words) for words in day.said.values())
    counts = f"{turns} turns, {len(day.said)} sessions, {day.closes} closes, {day.requests} requests, {day.spoiled}"
    with capsys.disabled():
        sys.stdout.write(f"\n{counts}\n")
    assert day.there == day.said
    assert day.notes == ["keeps bees"]
    assert day.early == []
    assert day.closes >= 3
    assert sum(day.spoiled.values()) > 5, day.spoiled


@pytest.mark.parametrize(("seed", "infer"), [(1, True), (2, False), (3, True)])
async def test_the_library_has_each_turn_once_after_its_model_has_failed_in_every_way(
    house: House, tmp_path: Path, seed: int, infer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FaultProxy(house.model.port, seed=seed) as proxy:
        settings = house.settings(infer=infer, address=proxy.url)
        check(await lived(tmp_path, proxy, settings, house.held), capsys)


@pytest.mark.parametrize(("seed", "infer"), [(1, True), (2, False), (3, False), (4, True)])
async def test_the_platform_has_each_turn_once_after_faults_of_every_kind(
    tmp_path: Path, seed: int, infer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeMem0(key="k-1234", takes_in_s=0.05, deletes_s=0.1) as fake:
        async with FaultProxy(fake.port, seed=seed) as proxy:
            settings = {"mode": "platform", "url": proxy.url, "api_key": "k-1234", "infer": infer}
            check(await lived(tmp_path, proxy, settings, lambda: held(fake.memories)), capsys)
