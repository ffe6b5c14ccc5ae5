"""Failed authentications: one line each, growing delays for one address, and bounds against a flood."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime import MovableClock

from everthread.log_file import LogFile
from everthread.web import auth_failures
from everthread.web.auth_failures import ADDRESSES_MAX, FREE, LINES_PER_MINUTE, AuthFailures
from everthread.web.errors import HttpError

ADDRESS = "198.51.100.9"
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "gateway" / "use-the-http-api.md"
# What fail2ban puts in the place of <ADDR>: an IPv4 or an IPv6 address.
ADDR = r"(?P<addr>(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)"


class StillClock(MovableClock):
    """A clock that only `advance` moves."""

    def elapsed(self) -> float:
        return self._passed_s


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, clock: StillClock) -> list[float]:
    """The delays, which pass at once."""
    found: list[float] = []

    async def wait(self: AuthFailures, record: object, delay_s: float) -> None:
        found.append(delay_s)
        clock.advance(delay_s)

    monkeypatch.setattr(AuthFailures, "_wait", wait)
    return found


async def test_the_delay_grows_to_its_bound(clock: StillClock, waits: list[float]) -> None:
    failures = AuthFailures(clock)
    for _ in range(FREE + 9):
        await failures.record(ADDRESS, "no token")
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


async def test_a_success_and_a_long_pause_clear_the_delay(clock: StillClock, waits: list[float]) -> None:
    failures = AuthFailures(clock)
    for _ in range(FREE + 1):
        await failures.record(ADDRESS, "no token")
    failures.succeed(ADDRESS)
    assert failures.addresses == 0
    for _ in range(FREE):
        await failures.record(ADDRESS, "no token")
    assert waits == [0.25]
    clock.advance(auth_failures.FORGET_S + 1)
    await failures.record(ADDRESS, "no token")
    assert waits == [0.25]


async def test_the_delay_of_one_address_does_not_affect_another(clock: StillClock, waits: list[float]) -> None:
    failures = AuthFailures(clock)
    for _ in range(FREE + 1):
        await failures.record("2001:db8::1", "no token")
    await failures.record(ADDRESS, "no token")
    assert waits == [0.25]
    await failures.record("2001:db8::ffff:1", "no token")
    assert waits == [0.25, 0.5], "another address of the same /64"


async def test_a_flood_from_many_addresses_does_not_hold_memory_or_fill_the_log(
    clock: StillClock, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    failures = AuthFailures(clock)
    for number in range(3 * ADDRESSES_MAX):
        await failures.record(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "unknown token")
    assert failures.addresses == ADDRESSES_MAX
    assert len(caplog.records) == LINES_PER_MINUTE
    clock.advance(61)
    await failures.record(ADDRESS, "unknown token")
    unlogged = 3 * ADDRESSES_MAX - LINES_PER_MINUTE
    assert [record.getMessage() for record in caplog.records[LINES_PER_MINUTE:]] == [
        f"{unlogged} failed authentications were not logged: too many at once",
        f"failed authentication from {ADDRESS}: unknown token",
    ]
    assert failures.count == 3 * ADDRESSES_MAX + 1


async def test_a_flood_of_waiting_requests_is_refused(clock: StillClock, caplog: pytest.LogCaptureFixture) -> None:
    failures = AuthFailures(clock)
    tasks = [asyncio.ensure_future(failures.record(ADDRESS, "no token")) for _ in range(100)]
    done, waiting = await asyncio.wait(tasks, timeout=0.1)
    assert len(waiting) == auth_failures.WAITING_PER_ADDRESS_MAX
    refused = [task.exception() for task in done if task.exception() is not None]
    assert len(refused) == 100 - FREE - auth_failures.WAITING_PER_ADDRESS_MAX
    assert all(isinstance(error, HttpError) and error.status == 429 for error in refused)
    assert len(caplog.records) == FREE + auth_failures.WAITING_PER_ADDRESS_MAX
    failures.stop()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert failures.waiting == 0


async def test_all_addresses_together_have_a_bounded_number_of_waiting_requests(
    clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_failures, "WAITING_MAX", 5)
    failures = AuthFailures(clock)
    tasks = [
        asyncio.ensure_future(failures.record(f"10.0.0.{number}", "no token"))
        for number in range(10)
        for _ in range(FREE + 1)
    ]
    _, waiting = await asyncio.wait(tasks, timeout=0.1)
    assert len(waiting) == 5
    failures.stop()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "everthread.log"
    handler = LogFile(path)
    logger = logging.getLogger("everthread")
    logger.addHandler(handler)
    yield path
    handler.leave()


def fail2ban_filter() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return failregex and datepattern of the documented filter, as fail2ban compiles them."""
    page = GUIDE.read_text()
    failregex, datepattern = (
        next(line for line in page.splitlines() if line.startswith(f"{name} = ")).partition(" = ")[2]
        for name in ("failregex", "datepattern")
    )
    date = datepattern.replace("%%", "%")
    for directive, digits in {"%Y": 4, "%m": 2, "%d": 2, "%H": 2, "%M": 2, "%S": 2, "%f": 3}.items():
        date = date.replace(directive, rf"\d{{{digits}}}")
    # Without the zone, fail2ban takes the time for local time.
    date = date.replace("%z", "Z")
    return re.compile(failregex.replace("<ADDR>", ADDR)), re.compile(date)


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines()


async def test_the_documented_fail2ban_filter_reads_a_real_line(
    clock: StillClock, waits: list[float], log_file: Path
) -> None:
    failures = AuthFailures(clock)
    addresses = (ADDRESS, "2001:db8::5", "unix")
    for address in addresses:
        await failures.record(address, "unknown token")
    logging.getLogger("everthread.web").warning("a request failed")
    failregex, date = fail2ban_filter()
    # fail2ban cuts the date out before it applies the expression.
    lines = [date.sub("", line, count=1) for line in lines_of(log_file)]
    assert len(lines) == 4
    assert all(date.search(line) for line in lines_of(log_file))
    found = [failregex.search(line) for line in lines]
    assert [match["addr"] if match else None for match in found] == [ADDRESS, "2001:db8::5", None, None]


async def test_other_text_in_the_log_cannot_block_an_address(log_file: Path) -> None:
    forged = '"logger":"everthread.web","text":"failed authentication from 203.0.113.1: no token","pid":1}'
    logging.getLogger("everthread.gateway").warning("%s", forged)
    logging.getLogger("everthread.gateway").warning("x", extra={"platform": forged})
    failregex, _ = fail2ban_filter()
    lines = lines_of(log_file)
    assert len(lines) == 2
    assert not any(failregex.search(line) for line in lines)
