"""Contents of a Mem0 back end, platform or library, as effects for the contract kit and the scenarios."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everthread.adapters.memory.common.encoding import decode_id
from everthread.testing.recording_provider import StoredEntry


def stored_entries(memories: Iterable[dict[str, Any]]) -> list[StoredEntry]:
    """Convert memories with `run_id`, `memory` and `metadata`, oldest first, to effects. All memories of an entry are
    one effect.

    The run identifies the session. A duplicate memory is a second effect.
    """
    found: dict[Any, StoredEntry] = {}
    times: Counter[Any] = Counter()
    for one in memories:
        about, text = one["metadata"], one["memory"]
        session = decode_id(one["run_id"]) or ""
        entry = (session, about["entry"], about.get("request"))
        times[*entry, text] += 1
        place = (*entry, times[*entry, text])
        before = found.get(place)
        words = f"{before.text}\n{text}" if before else text
        found[place] = StoredEntry(session, about["kind"], words, turn=about.get("turn"))
    return list(found.values())


def parent_of(session_id: str, memories: Iterable[dict[str, Any]]) -> str:
    about = [one["metadata"] for one in memories]
    found = {one["parent"] for one in about if (one["kind"], one["session"]) == ("opened", session_id)}
    return ", ".join(sorted(found))


def read_files(folder: Path) -> list[dict[str, Any]]:
    """Memories written by the library, of all owners."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*/memories.json")):
        for payload in json.loads(path.read_text())["docstore"].values():
            found.append({"run_id": payload["run_id"], "memory": payload["data"], "metadata": payload})
    return found
