"""The fault proxy: real connections to a small server that records its requests."""

from __future__ import annotations

import asyncio
import http.client
from collections import Counter

import aiohttp
import pytest

from everthread.testing.fault_proxy import ACTED, Fault, FaultProxy
from everthread.testing.model_server.http import HttpServer, read_request, respond

BODY = b'{"answer": "' + b"x" * 400 + b'"}'


class Counting(HttpServer):
    """Server that gives every request the same answer, records it, and keeps the connection open."""

    def __init__(self, *, chunked: bool = False) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, bytes]] = []
        self._chunked = chunked

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        self.asked.append((method, received.path, received.body))
        if self._chunked:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
            await writer.drain()
            return True
        return await respond(writer, 201, BODY)


async def post(proxy: FaultProxy, path: str = "/a?b=1", timeout_s: float = 5.0) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s)) as client,
        client.post(proxy.url + path, data=b"hello") as answer,
    ):
        return answer.status, await answer.read()


async def test_a_request_without_a_fault_is_forwarded_whole() -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        assert await post(proxy) == (201, BODY)
        assert server.asked == [("POST", "/a?b=1", b"hello")]
        assert (proxy.passed, proxy.reached, proxy.injected) == (1, 1, Counter())


async def test_a_chunked_response_is_forwarded() -> None:
    async with Counting(chunked=True) as server, FaultProxy(server.port) as proxy:
        assert await post(proxy) == (200, BODY)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOST])
async def test_the_server_acts_and_the_client_gets_no_response(fault: Fault) -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        proxy.inject(fault)
        with pytest.raises(aiohttp.ClientError):
            await post(proxy)
        assert (len(server.asked), proxy.reached, proxy.injected) == (1, 1, Counter({fault: 1}))
        assert await post(proxy) == (201, BODY), "a later request was affected"


async def test_a_cut_response_has_begun() -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        proxy.inject(Fault.CUT)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        got = await reader.read()
        writer.close()
        assert got.startswith(b"HTTP/1.1 201")
        assert 0 < got.partition(b"\r\n\r\n")[2].count(b"x") < 400


@pytest.mark.parametrize(("fault", "statuses"), [(Fault.BUSY, {429}), (Fault.ERROR, {500, 502, 503})])
async def test_a_refusal_never_reaches_the_server(fault: Fault, statuses: set[int]) -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        proxy.inject(fault, 3)
        assert {(await post(proxy))[0] for _ in range(3)} == statuses
        assert server.asked == []


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.STALL])
async def test_heal_disconnects_a_client_that_hangs(fault: Fault) -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        proxy.inject(fault)
        hanging = asyncio.ensure_future(post(proxy))
        done, _ = await asyncio.wait({hanging}, timeout=0.3)
        assert not done
        assert len(server.asked) == (fault in ACTED)
        proxy.heal()
        with pytest.raises(aiohttp.ClientError):
            await hanging
        assert await post(proxy) == (201, BODY)


async def test_a_client_that_gives_up_does_not_disturb_the_next() -> None:
    async with Counting() as server, FaultProxy(server.port) as proxy:
        proxy.inject(Fault.HANG)
        with pytest.raises(TimeoutError):
            await post(proxy, timeout_s=0.1)
        assert await post(proxy) == (201, BODY)


async def test_a_delayed_request_reaches_the_server_late() -> None:
    async with Counting() as server, FaultProxy(server.port, delay_s=0.2) as proxy:
        proxy.inject(Fault.DELAY)
        late = asyncio.ensure_future(post(proxy))
        await asyncio.sleep(0.1)
        assert server.asked == []
        assert await late == (201, BODY)


async def test_an_unreachable_server_is_a_bad_gateway() -> None:
    async with FaultProxy(9) as proxy:
        assert (await post(proxy))[0] == 502


def drawn(proxy: FaultProxy, paths: list[str]) -> dict[str, list[Fault | None]]:
    found: dict[str, list[Fault | None]] = {}
    for path in paths:
        found.setdefault(path, []).append(proxy.draw("POST", path))
    return found


def test_the_seed_determines_the_faults_of_each_path_in_any_order() -> None:
    paths = ["/a", "/b", "/c"] * 40
    first = drawn(FaultProxy(1, seed=3, rate=0.5), paths)
    assert drawn(FaultProxy(1, seed=3, rate=0.5), sorted(paths)) == first
    assert drawn(FaultProxy(1, seed=4, rate=0.5), paths) != first
    everything = [fault for of_path in first.values() for fault in of_path]
    assert set(everything) == {None, *Fault}
    assert 0.35 < sum(fault is not None for fault in everything) / len(everything) < 0.65


async def test_a_client_that_retries_reaches_the_server_in_the_end() -> None:
    kinds = [fault for fault in Fault if fault not in (Fault.HANG, Fault.STALL)]
    async with Counting() as server, FaultProxy(server.port, seed=11, rate=0.6, kinds=kinds, delay_s=0.001) as proxy:

        async def insist(path: str) -> None:
            while True:
                try:
                    if (await post(proxy, path))[0] == 201:
                        return
                except aiohttp.ClientError:
                    pass

        await asyncio.gather(*(insist(f"/{number}") for number in range(20)))
        acted = sum(proxy.injected[fault] for fault in ACTED)
        assert proxy.reached == len(server.asked) == proxy.passed + acted
        assert {path for _, path, _ in server.asked} == {f"/{number}" for number in range(20)}
        assert all(proxy.injected[fault] for fault in kinds)


def test_the_proxy_in_a_thread_serves_a_blocking_client() -> None:
    with Counting().in_thread() as server, FaultProxy(server.port).in_thread() as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=5)
        connection.request("POST", "/x", b"hello")
        assert connection.getresponse().read() == BODY
        proxy.inject(Fault.LOST)
        spoiled = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=5)
        spoiled.request("GET", "/y")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            spoiled.getresponse()
