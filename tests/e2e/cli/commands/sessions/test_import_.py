"""`everthread sessions import`."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

from tests.e2e.cli.commands.sessions.sessions_home import TERMINAL, SampleHome, open_session, say
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Resume

# --- Export and import -----------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_exported_home_can_be_imported_completely(sample: SampleHome, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    done = printed(sample.home, "sessions", "export", "--all", "--notes", "-o", str(first))
    assert (done["sessions"], done["notes"]) == (6, 1)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    other = tmp_path / "other"
    dry = printed(other, "sessions", "import", str(first), "--dry-run", "--keep-owners")
    assert not other.exists()
    tally = printed(other, "sessions", "import", str(first), "--keep-owners")
    assert tally == dry | {"dry_run": False}
    assert (tally["sessions"], tally["notes"], tally["left_out"]) == (6, 1, {})
    assert (other / "memory" / "USER.md").read_text() == "likes trains\n"
    assert problems(other) == []
    printed(other, "sessions", "export", "--all", "--notes", "-o", str(second))
    named = ("exported_at",)
    texts = [[{n: v for n, v in line.items() if n not in named} for line in lines_of(f)] for f in (first, second)]
    for line in texts[0] + texts[1]:
        if line["type"] == "note":
            del line["at"]
    assert texts[0] == texts[1]
    assert printed(other, "sessions", "import", str(first), "--keep-owners")["same"] == 6


def test_an_invalid_line_imports_nothing_and_is_reported(sample: SampleHome, tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    printed(sample.home, "sessions", "export", "--all", "-o", str(file))
    lines = file.read_text().splitlines()
    lines[4] = lines[4].replace('"role":"user"', '"role":"king"')
    file.write_text("\n".join(lines) + "\n")
    refused(everthread(tmp_path / "other", "sessions", "import", str(file)), 2, "it.jsonl, line 5", "king")
    assert not (tmp_path / "other").exists()
    refused(everthread(tmp_path / "other", "sessions", "import", str(tmp_path)), 2)
    refused(everthread(tmp_path / "other", "sessions", "import", str(tmp_path / "none")), 1, "no such file")


def test_data_of_several_people_needs_an_option(sample: SampleHome, tmp_path: Path) -> None:
    file, noted, other = tmp_path / "all.jsonl", tmp_path / "noted.jsonl", tmp_path / "other"
    printed(sample.home, "sessions", "export", "--all", "-o", str(file))
    refused(everthread(other, "sessions", "import", str(file)), 2, "2 people", "--keep-owners", "--as-mine")
    refused(everthread(other, "sessions", "import", str(file), "--as-mine", "--keep-owners"), 2, "exclude")
    printed(sample.home, "sessions", "export", sample.taxes, "--notes", "-o", str(noted))
    you = {**os.environ, "EVERTHREAD_OWNER": "you"}
    refused(everthread(other, "sessions", "import", str(noted), env=you), 2, "notes of another person", "--as-mine")
    assert not other.exists()
    printed(other, "sessions", "import", str(noted))
    printed(other, "sessions", "import", str(file), "--as-mine")
    assert {session["owner"] for session in printed(other, "sessions", "list")} == {"me"}


def test_invalid_owners_in_the_file_are_refused(sample: SampleHome, tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    printed(sample.home, "sessions", "export", sample.taxes, "-o", str(file))
    text = file.read_text()
    for owner in ("\\u009b31m", "  ", "a\\nb"):
        file.write_text(text.replace('"owner":"me"', f'"owner":"{owner}"'))
        done = everthread(tmp_path / "other", "sessions", "import", str(file), "--keep-owners")
        refused(done, 2, "it.jsonl: owner", "--as-mine")
    assert not (tmp_path / "other").exists()


def test_an_export_can_be_piped_into_an_import(sample: SampleHome, tmp_path: Path) -> None:
    said = everthread(sample.home, "sessions", "export", sample.tip).stdout
    done = everthread(tmp_path / "other", "sessions", "import", "-", "--json", answer=said)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == len(printed(tmp_path / "other", "sessions", "list"))
    refused(everthread(tmp_path / "more", "sessions", "import", "-", answer=said[:200]), 2, "stdin, line")
    refused(everthread(tmp_path / "more", "sessions", "import", "-", answer=""), 2, "stdin")


def test_a_named_pipe_is_refused_at_once(sample: SampleHome, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(everthread(sample.home, "sessions", "import", str(tmp_path / "pipe")), 2, "pipe", "import -")
    refused(everthread(sample.home, "sessions", "import", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(sample.home, "backup", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(sample.home, "restore", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(sample.home, "sessions", "export", "--all", "-o", "~nosuchuser/x"), 2, "nosuchuser")


def test_imported_sessions_belong_to_the_importer_and_can_be_continued(sample: SampleHome, tmp_path: Path) -> None:
    file, other = tmp_path / "it.jsonl", tmp_path / "other"
    printed(sample.home, "sessions", "export", sample.chat, "-o", str(file))
    printed(other, "sessions", "import", str(file))
    [session] = printed(other, "sessions", "list")
    assert (session["id"], session["owner"]) == (sample.chat, "me")

    async def go_on() -> None:
        async with Runtime(Settings(other)) as runtime:
            await open_session(runtime, TERMINAL, Resume(sample.chat), "me")
            await say(runtime, TERMINAL, "me", "and on")

    asyncio.run(go_on())
    assert len(printed(other, "sessions", "show", sample.chat)["transcript"]) == 2
    assert problems(other) == []
