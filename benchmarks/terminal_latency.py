"""Measure the time to the first prompt and the latency of keystrokes while an answer is drawn."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.agent_turns import model_server
from benchmarks.measurement import Figure
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

COMMAND = Path(sys.executable).parent / "everthread"
RUNS = 9
KEYS = 300
KEY_S = 0.03
TOKENS_PER_S = 200
TOKENS = int((KEYS * KEY_S + 4) * TOKENS_PER_S)
TIMEOUT_S = 20.0
PROMPT = b"\x1b[0;1m>"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARAGRAPH = (
    "Some **words** of an answer, with `code` in them, as they are written in a paragraph of ordinary length. " * 3
)


async def first_prompt(folder: Path) -> dict[str, Figure]:
    """Measure `everthread` on a terminal from its start to the first prompt."""
    samples: list[float] = []
    async with model_server() as url:
        home = _home(folder, url)
        for _ in range(RUNS):
            samples.append(await asyncio.to_thread(_first_prompt_cpu_ms, home))
    # The first run compiles modules to bytecode and creates the home.
    return {"first_prompt_cpu_ms": Figure.of(samples[1:])}


async def keystrokes(folder: Path) -> dict[str, Figure]:
    """Measure the time from a keystroke to its echo while an answer of 200 words per second is drawn."""
    async with _streaming_server() as url:
        home = _home(folder, url)
        waits = sorted(await asyncio.to_thread(_type_keys, home))
    p99 = waits[min(int(len(waits) * 0.99), len(waits) - 1)]
    return {
        "keystroke_ms_p99": Figure(p99, waits[0], waits[-1]),
        "keystroke_ms": Figure(statistics.median(waits), waits[0], waits[-1]),
    }


def _home(folder: Path, url: str) -> Path:
    (folder / "config.toml").write_text(f'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n')
    return folder


@asynccontextmanager
async def _streaming_server() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.terminal_latency", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/v1"
    finally:
        process.terminate()
        await process.wait()


@contextmanager
def _terminal(home: Path) -> Iterator[tuple[int, int]]:
    """Run the command on a new terminal; yield its process id and the master descriptor."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child, master = pty.fork()
    if child == 0:
        os.execve(str(COMMAND), [str(COMMAND), "--home", str(home)], environment | {"TERM": "xterm-256color"})
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    try:
        yield child, master
    finally:
        os.write(master, b"\x03\x15\x04\x04")
        _read_until(master, b"Continue with", 5.0, optional=True)
        os.close(master)
        os.waitpid(child, 0)


def _first_prompt_cpu_ms(home: Path) -> float:
    with _terminal(home) as (child, master):
        _read_until(master, PROMPT, TIMEOUT_S)
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / _TICKS_PER_S


def _type_keys(home: Path) -> list[float]:
    with _terminal(home) as (_, master):
        _read_until(master, PROMPT, TIMEOUT_S)
        os.write(master, b"go\r")
        _read_until(master, b"ordinary", TIMEOUT_S)
        waits: list[float] = []
        for number in range(KEYS):
            # Letters that occur in no answer; consecutive ones differ.
            letter = chr(0x0180 + number % 0x50).encode()
            start = time.perf_counter()
            os.write(master, letter)
            _read_until(master, letter, TIMEOUT_S)
            waits.append((time.perf_counter() - start) * 1000)
            if number % 40 == 39:
                os.write(master, b"\x15")
            _read_for(master, KEY_S)
        return waits


def _read_until(master: int, wanted: bytes, timeout_s: float, *, optional: bool = False) -> None:
    seen = b""
    deadline = time.monotonic() + timeout_s
    while wanted not in seen:
        ready, _, _ = select.select([master], [], [], max(deadline - time.monotonic(), 0.0))
        try:
            chunk = os.read(master, 65536) if ready else b""
        except OSError:
            chunk = b""
        if not chunk:
            assert optional, f"{wanted!r} did not appear: {seen[-300:]!r}"
            return
        seen = seen[-200:] + chunk


def _read_for(master: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            os.read(master, 65536)


async def _serve() -> None:
    words = (_PARAGRAPH.strip() + "\n\n").split(" ")
    text = " ".join(words[number % len(words)] for number in range(TOKENS))
    answer = Say(text, chunks=TOKENS, delay_s=1 / TOKENS_PER_S)
    async with ModelServer(lambda received: answer) as server:
        print(server.port, flush=True)
        await server.run()


if __name__ == "__main__":
    asyncio.run(_serve())
