"""Real Hermes Agent plugins as classes without constructor arguments, so that other processes can create them too."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.hermes_provider_faults import compare_facts, minutes
from tests.provider_backend import ProviderBackend
from tests.provider_faults import Day
from tests.servers.hermes_program import CACHE, installed

from everthread.adapters.memory.hermes_bridge.provider import HermesBridge

EXTRACTING = "plugins:\n  hermes-memory-store:\n    auto_extract: true\n"


def python() -> str:
    """Interpreter of the environment that contains Hermes Agent."""
    installed()
    return str(CACHE / "bin" / "python")


class Holographic(HermesBridge):
    def __init__(self) -> None:
        super().__init__("holographic")


class OpenViking(HermesBridge):
    def __init__(self) -> None:
        super().__init__("openviking")


class Facts:
    """A folder of the bridge in which `holographic` extracts facts from messages, and access to the contents of its
    files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "config.yaml").write_text(EXTRACTING)
        self._holding: sqlite3.Connection | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "python": python(), "people": "each", "owner": "me"}

    def back_end(self) -> ProviderBackend:
        """Back end for fault runs. The plugin stores no turns, so the contents are the deliveries that its process
        received.
        """
        provider = f"{Holographic.__module__}:{Holographic.__qualname__}"
        settings = self.settings | {"owner": "ann"}
        return ProviderBackend(
            provider,
            settings,
            None,  # type: ignore[arg-type] - what is spoiled is the way to it
            lambda: minutes(settings),
            keeps_closes=False,
            knows_no_keys=True,
        )

    def of(self, home: Path) -> list[str]:
        return _kept_in(home)

    def all(self) -> list[str]:
        return [fact for file in sorted(self.folder.glob("**/memory_store.db")) for fact in self.of(file.parent)]

    def hang(self) -> None:
        """Lock the plugin's file, so that writes block."""
        self._holding = sqlite3.connect(self.home / "memory_store.db", isolation_level=None, timeout=30)
        self._holding.execute("BEGIN IMMEDIATE")

    def heal(self) -> None:
        if self._holding is not None:
            self._holding.rollback()
            self._holding.close()
            self._holding = None


def compare(day: Day, back_end: ProviderBackend) -> None:
    """Check that each person's file contains that person's facts after a fault run."""
    folder = Path(back_end.settings["folder"])
    homes = {"ann": folder / "home", "bob": folder / "people" / "bob"}
    stored = {owner: _kept_in(home) for owner, home in homes.items()}
    compare_facts(day, stored, minutes(back_end.settings))


def _kept_in(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "memory_store.db", timeout=30)) as db:
        return [row[0] for row in db.execute("SELECT content FROM facts ORDER BY fact_id")]
