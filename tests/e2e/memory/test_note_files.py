"""Two processes synchronise the note files of one home at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings

WORKER = Path(__file__).parent / "note_files_worker.py"
EDITS = 20


class Worker:
    """A process that synchronises when told to."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start_sync(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Leaving the process closes its input, which ends it.
        with self.process:
            pass


async def test_an_edit_seen_by_two_processes_is_stored_once(tmp_path: Path) -> None:
    file = tmp_path / "memory" / "MEMORY.md"
    file.parent.mkdir(mode=0o700)
    texts = [f"hive number {number}" for number in range(EDITS)]
    with Worker(tmp_path) as one, Worker(tmp_path) as other:
        assert [one.line(), other.line()] == ["ready", "ready"]
        for text in texts:
            with file.open("a") as edited:
                edited.write(f"§\n{text}\n")
            one.start_sync()
            other.start_sync()
            assert [one.line(), other.line()] == ["done", "done"]
    async with Runtime(Settings(tmp_path)) as runtime:
        written = await runtime.store.read(lambda uow: uow.notes.history(runtime.settings.owner, 1000))
    assert Counter(version.content for version in written) == dict.fromkeys(texts, 1)
    assert file.read_text() == "\n§\n".join(texts) + "\n"
    assert {path.name for path in file.parent.iterdir()} <= {"MEMORY.md", "USER.md"}


async def test_a_draft_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    (folder / "MEMORY.md.0123abcd.new").write_text("half a note")
    async with Runtime(Settings(tmp_path)) as runtime:
        (folder / "MEMORY.md").write_text("  keeps bees\n")
        assert await runtime.sync_notes(runtime.settings.owner) == ""
    assert sorted(path.name for path in folder.iterdir()) == ["MEMORY.md"]
