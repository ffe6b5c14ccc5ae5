"""Plugins of the real Hermes Agent, each as a class that takes no arguments: they are made in other processes too."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.servers.hermes_program import CACHE, installed

from everthread.adapters.memory.hermes_bridge import HermesBridge

EXTRACTING = "plugins:\n  hermes-memory-store:\n    auto_extract: true\n"


def python() -> str:
    """The interpreter of the environment that has Hermes Agent."""
    installed()
    return str(CACHE / "bin" / "python")


class Holographic(HermesBridge):
    def __init__(self) -> None:
        super().__init__("holographic")


class OpenViking(HermesBridge):
    def __init__(self) -> None:
        super().__init__("openviking")


class Facts:
    """A folder of the bridge's in which `holographic` draws facts from what is said, and what is in its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "config.yaml").write_text(EXTRACTING)
        self._holding: sqlite3.Connection | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "python": python(), "people": "each", "owner": "me"}

    def of(self, home: Path) -> list[str]:
        with closing(sqlite3.connect(home / "memory_store.db", timeout=30)) as db:
            return [row[0] for row in db.execute("SELECT content FROM facts ORDER BY fact_id")]

    def all(self) -> list[str]:
        return [fact for file in sorted(self.folder.glob("**/memory_store.db")) for fact in self.of(file.parent)]

    def hang(self) -> None:
        """Hold its file, so that nothing can be written to it."""
        self._holding = sqlite3.connect(self.home / "memory_store.db", isolation_level=None, timeout=30)
        self._holding.execute("BEGIN IMMEDIATE")

    def heal(self) -> None:
        if self._holding is not None:
            self._holding.rollback()
            self._holding.close()
            self._holding = None
