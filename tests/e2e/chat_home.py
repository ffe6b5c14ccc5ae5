"""Homes, terminals and expected screens for tests of the chat: real processes, only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.terminal_screen import TerminalScreen

from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.model import Turn

WORKER = Path(__file__).with_name("chat_worker.py")
WAIT_S_MAX = 12.0
LONG = "alpha bravo charlie delta echo foxtrot golf hotel india juliett"


class Home:
    """A home directory and the commands that run on it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "home"
        self.script = path / "script.json"
        self.set_script()

    def set_script(self, **script: Any) -> None:
        self.script.write_text(json.dumps(script))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(WORKER), str(self.script), "--home", str(self.path), *arguments]

    def run(self, *arguments: str, stdin: str | bytes = b"", **more: Any) -> subprocess.CompletedProcess[str]:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.command(*arguments), capture_output=True, input=given, timeout=18, check=False, env=clean_env(), **more
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def ask(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        return json.loads(done.stdout)

    @contextmanager
    def terminal(self, *arguments: str) -> Iterator[Terminal]:
        terminal = Terminal(self.command(*arguments))
        try:
            yield terminal
        finally:
            terminal.close()

    def turns(self, session_id: str = "") -> list[Turn]:
        """Return the visible turns of the given session, by default the only one."""

        async def look() -> list[Turn]:
            store = await SqliteStore.open(self.path / "everthread.db")
            try:
                [found] = [
                    session
                    for session in await store.read(lambda uow: uow.sessions.recent(owner="me", limit=9, kind="chat"))
                    if session_id in ("", session.id)
                ]
                return list((await store.read(lambda uow: uow.turns.view(found))).turns)
            finally:
                await store.aclose()

        return asyncio.run(look())


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Terminal:
    """A process on a terminal of its own. `expect` searches the output since the previous match."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=clean_env()
        )
        os.close(slave)
        self.seen = ""
        self._from = 0

    def type(self, text: str | bytes) -> None:
        os.write(self._master, text.encode() if isinstance(text, str) else text)

    def expect(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            match = re.search(pattern, self.seen[self._from :])
            if match is not None:
                self._from += match.end()
                return match
            assert time.monotonic() < deadline, f"{pattern!r} did not appear:\n{self.seen}"
            assert self._read(deadline), f"ended without {pattern!r}:\n{self.seen}"

    def ended(self) -> int:
        """Wait for the process to end and return its exit code."""
        deadline = time.monotonic() + WAIT_S_MAX
        while self._read(deadline):
            assert time.monotonic() < deadline, f"the process did not end:\n{self.seen}"
        code = self.process.wait(WAIT_S_MAX)
        assert "Traceback" not in self.seen, self.seen
        assert "Exception" not in self.seen, self.seen
        return code

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError:
            return False
        self.seen += re.sub(r"\x1b\[[0-9;]*m", "", chunk.decode(errors="replace")).replace("\r\n", "\n")
        return bool(chunk)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def clean_env() -> dict[str, str]:
    # Drop the environment variables of the developer; the program reads all settings from its home.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    # A line-based terminal; other tests cover the full-screen output.
    return kept | {"TERM": "dumb"}


Run = Callable[..., Ended]
SCREENS = Path(__file__).parents[1] / "screens"
ANSWER = """# A plan for Lisbon

Here is **what I found** about the `museum`, in a paragraph that is long enough to be wrapped on most terminals, \
narrow or wide, so that one can see how it looks.

- first item
- second item with *emphasis*
  that goes on

1. one
2. two

```python
def double(x):
    return 2 * x  # twice
```

| city | days |
|---|---|
| Lisbon | 3 |
| Porto | 2 |

> Somebody said so.

See [the site](https://example.org/museum) for more. 日本語もある。"""
PROMPT = r"(?m)^>$"
OpenScreen = Callable[..., TerminalScreen]


def assert_screen(name: str, screen: str) -> None:
    """Compare a screen with the stored one; `KEEP_SCREENS=1` stores this one instead."""
    plain = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "01SESSION0000000000000000ID", screen)
    plain = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-02 03:04", plain)
    plain = re.sub(r"\b\d+(\.\d)? (m?s)\b", r"1.0 \2", plain) + "\n"
    path = SCREENS / f"{name}.txt"
    if os.environ.get("KEEP_SCREENS"):
        SCREENS.mkdir(exist_ok=True)
        path.write_text(plain)
    assert plain == path.read_text(), plain


def expire_leases(home: Home) -> None:
    """Mark killed processes as ended, as the expiry of their heartbeat would after half a minute."""

    async def leave() -> None:
        store = await SqliteStore.open(home.path / "everthread.db")
        try:
            for slot in await store.read(lambda uow: uow.slots.orphans(2**40)):
                await store.write(lambda uow, holder=slot.holder: uow.leases.end_process(holder))
        finally:
            await store.aclose()

    asyncio.run(leave())
