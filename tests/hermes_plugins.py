"""Hermes Agent homes with hand-written memory plugins, which the bridge runs without Hermes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from everthread.testing.recording_provider import StoredEntry

PLUGINS = Path(__file__).parent / "fixtures" / "hermes_plugins"


class Ways:
    """Behaviour of the plugin `diary`, including the faults of the contract kit."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def set(self, **ways: Any) -> None:
        now = json.loads(self._file.read_text()) if self._file.exists() else {}
        new = self._file.with_suffix(".set")
        new.write_text(json.dumps(now | ways))
        new.replace(self._file)

    def fail_next(self, calls: int = 1) -> None:
        self.set(fail=calls)

    def reject_next(self, calls: int = 1) -> None:
        self.set(reject=calls)

    def lose_next(self, calls: int = 1) -> None:
        self.set(lose=calls)

    def hang(self) -> None:
        self.set(hang=True)

    def heal(self) -> None:
        self.set(fail=0, reject=0, lose=0, hang=False, down=False)


class Diaries:
    """A folder of the bridge, with a home that contains the hand-written plugins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir(parents=True)
        (home / "plugins").symlink_to(PLUGINS)
        (home / ".env").write_text(f"# how it behaves\nDIARY_WAYS={folder / 'ways.json'}\n")
        self.ways = Ways(folder / "ways.json")

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `initialize`."""
        return {"folder": str(self.folder), "python": sys.executable, "people": "each", "owner": "ann"}

    def lines(self) -> list[dict[str, Any]]:
        """All recorded lines of all owners, oldest first."""
        files = self.folder.glob("**/diary.jsonl")
        return sorted(
            (json.loads(line) for file in files for line in file.read_text().splitlines()), key=lambda line: line["at"]
        )

    def effects(self) -> list[StoredEntry]:
        return [StoredEntry(line["session"], line["kind"], line["text"]) for line in self.lines()]

    def told(self, session: str, kind: str = "turn") -> list[str]:
        return [line["text"] for line in self.lines() if (line["session"], line["kind"]) == (session, kind)]
