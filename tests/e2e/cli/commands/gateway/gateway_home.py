"""Homes of gateways that run as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, model, until


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with model() as address:
        yield address


@pytest.fixture
def core(tmp_path: Path, url: str) -> Iterator[GatewayProcessFixture]:
    fixture = GatewayProcessFixture(tmp_path / "home", url)
    yield fixture
    fixture.leave()


def answered(core: GatewayProcessFixture, chat: str = "1", count: int = 1) -> None:
    until(lambda: len(core.out(chat)) == count, f"{count} answers in {chat}")
