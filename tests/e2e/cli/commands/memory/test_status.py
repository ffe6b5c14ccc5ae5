"""`everthread memory status`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cli.commands.memory.memory_home import SampleHome, everthread, printed


def test_status_prints_providers_and_notes_and_fails_while_entries_are_parked(sample: SampleHome) -> None:
    done = everthread(sample.home, "memory", "status", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    builtin, picky = told["providers"]
    assert (builtin["provider"], builtin["loaded"], builtin["waiting"]) == ("builtin", True, 0)
    assert (picky["provider"], picky["loaded"], picky["parked"]) == ("picky", False, 1)
    assert "not that" in picky["last_error"]
    [entry] = picky["parked_entries"]
    assert (entry["session"], "not that" in entry["error"]) == (sample.session, True)
    assert told["notes"] == {
        "user": {"file": "USER.md", "chars": 13, "chars_max": 4000},
        "memory": {"file": "MEMORY.md", "chars": 12, "chars_max": 8000},
    }
    shown = everthread(sample.home, "memory", "status").stdout
    assert "not loaded here" in shown
    assert sample.session in shown.partition("Parked:")[2]


def test_status_lists_configured_providers_of_a_new_home(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[memory]\nproviders = ["builtin", "honcho"]\n')
    told = printed(tmp_path, "memory", "status")["providers"]
    assert [(one["provider"], one["state"], one["waiting"], one["health"]) for one in told] == [
        ("builtin", "nothing yet", 0, None),
        ("honcho", "nothing yet", 0, None),
    ]
    shown = everthread(tmp_path, "memory", "status")
    assert (shown.returncode, shown.stdout.count("nothing yet")) == (0, 2)
    assert not list(tmp_path.glob("*.db"))
