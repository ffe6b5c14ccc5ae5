"""Fault runs for the bridge to Hermes Agent plugins, with faults between the bridge and the plugin's process."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.adapters.memory.hermes_bridge import user_plugin
from everthread.memory.delivery_results import Limits
from everthread.testing.recording_provider import StoredEntry
from tests import faulty_python as spoiled_python
from tests.provider_backend import ProviderBackend
from tests.provider_faults import Day, Spoiling

RATE = 0.4
START_S_MAX = 6.0
"""Start-up timeout of a process. The real one is much longer and would dominate the run time."""
LIMITS = Limits(attempt_s_max=3.0, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
FAULTS = spoiled_python.FAULTS
SAYS = "I like"
"""Prefix that the plugin `holographic` recognises as a fact."""
_KINDS = {"sync_turn": "turn", "on_session_end": "close"}


class SpoiledPython:
    """Fault-injecting interpreter for `memory.hermes.python`, in a folder of its own."""

    def __init__(self, folder: Path, interpreter: str, seed: int, rate: float = RATE) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        (folder / "seed").write_text(str(seed))
        (folder / "rate").write_text(str(rate))
        self.path = folder / "python"
        command = shlex.join([sys.executable, spoiled_python.__file__, interpreter, str(folder)])
        self.path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self.path.chmod(0o700)

    @property
    def spoiled(self) -> Counter[str]:
        return Counter(self._lines("spoiled"))

    @property
    def requests(self) -> int:
        return sum(len(self._lines(file.name)) for file in self._folder.glob("requests-*"))

    def heal(self) -> None:
        (self._folder / "healed").touch()

    def _lines(self, name: str) -> list[str]:
        file = self._folder / name
        return file.read_text().splitlines() if file.exists() else []


def _effect(session: str, kind: str, args: list[Any]) -> StoredEntry:
    if kind == "turn":
        return StoredEntry(session, kind, str(args[0]))
    return StoredEntry(session, kind, " ".join(message["content"] for message in args[0] if message["role"] == "user"))


class _Way:
    def __init__(self, python: SpoiledPython, settings: dict[str, Any]) -> None:
        self._python = python
        self.settings = settings | {"python": str(python.path)}

    @property
    def spoiled(self) -> Counter[str]:
        return self._python.spoiled

    @property
    def requests(self) -> int:
        return self._python.requests

    def heal(self) -> None:
        self._python.heal()


@asynccontextmanager
async def spoiled(back_end: ProviderBackend, seed: int) -> AsyncIterator[Spoiling]:
    python = SpoiledPython(_folder(back_end.settings), back_end.settings["python"], seed)
    patience, user_plugin.START_S_MAX = user_plugin.START_S_MAX, START_S_MAX
    try:
        yield _Way(python, back_end.settings)
    finally:
        user_plugin.START_S_MAX = patience


def minutes(settings: dict[str, Any]) -> list[StoredEntry]:
    """Turns and closes that the plugin's process completed, even if the answer was lost."""
    file = _folder(settings) / "minutes"
    told = map(json.loads, file.read_text().splitlines())
    return [_effect(session, _KINDS[hook], args) for session, hook, args in told if hook in _KINDS]


def compare_facts(day: Day, stored: dict[str, list[str]], told: list[StoredEntry]) -> None:
    """Compare facts of a plugin without sessions: each person has their facts once, and each close has its session's
    facts.
    """
    for owner, words in day.said.items():
        kept = re.findall(r"word\d+", " ".join(stored[owner]))
        if sorted(kept) != sorted(words):
            day.problems.append(f"{owner}: said {words}, there is {kept}")
    for session in {one.session_id for one in told}:
        of = [one for one in told if one.session_id == session]
        turns = list(dict.fromkeys(w for one in of if one.kind == "turn" for w in re.findall(r"word\d+", one.text)))
        if of[-1].kind != "close" or (turns and re.findall(r"word\d+", of[-1].text)[-len(turns) :] != turns):
            day.problems.append(f"{session}: told {turns}, closed with {of[-1]}")


def _folder(settings: dict[str, Any]) -> Path:
    return Path(settings["folder"]) / "spoiled"
