"""`trust.json`: nothing that somebody else wrote, or that is damaged, approves anything."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from everthread.domain.errors import StoreUnwritable
from everthread.trust.decisions import COUNT_MAX, FolderDecision, PluginDecision, TrustFile

YES = PluginDecision(True, "d1")


@pytest.fixture
def trust(tmp_path: Path) -> TrustFile:
    return TrustFile(tmp_path / "home" / "trust.json")


def test_decisions_are_kept_and_forgotten(trust: TrustFile) -> None:
    assert trust.read().plugins == {}
    trust.decide_plugin("diary", YES)
    trust.decide_skills("/work", FolderDecision(False, {"a/SKILL.md": "d2"}))
    decisions = TrustFile(trust.path).read()
    assert decisions.plugins == {"diary": YES}
    assert decisions.skills == {"/work": FolderDecision(False, {"a/SKILL.md": "d2"})}
    trust.decide_plugin("diary", None)
    assert (trust.read().plugins, trust.read().skills) == ({}, decisions.skills)


def test_only_the_user_can_read_and_write_the_file(trust: TrustFile) -> None:
    trust.decide_plugin("diary", YES)
    assert trust.path.stat().st_mode & 0o777 == 0o600
    assert trust.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_another_user_cannot_approve_anything(trust: TrustFile, mode: int) -> None:
    trust.decide_plugin("diary", YES)
    trust.path.chmod(mode)
    assert trust.read().plugins == {}
    assert "others can write to it; nothing is approved. Run: chmod 600" in trust.problem()


def test_a_link_cannot_lead_to_another_file(trust: TrustFile, tmp_path: Path) -> None:
    other = TrustFile(tmp_path / "other" / "trust.json")
    other.decide_plugin("diary", YES)
    trust.path.parent.mkdir()
    trust.path.symlink_to(other.path)
    assert trust.read().plugins == {}
    assert "nothing is approved" in trust.problem()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"plugins": {"diary": {"approved": 1, "digest": "d1"}}}', b"\xff"]
)
def test_a_damaged_file_approves_nothing_and_is_reported(trust: TrustFile, content: bytes) -> None:
    trust.path.parent.mkdir()
    trust.path.write_bytes(content)
    trust.path.chmod(0o600)
    assert trust.read().plugins == {}
    assert "nothing is approved. Fix or remove the file" in trust.problem()
    trust.decide_plugin("diary", YES)
    assert trust.problem() == ""


def test_the_number_of_decisions_is_limited(trust: TrustFile) -> None:
    for number in range(COUNT_MAX + 2):
        trust.decide_plugin(f"p{number}", YES)
    kept = list(trust.read().plugins)
    assert (len(kept), kept[0], kept[-1]) == (COUNT_MAX, "p2", f"p{COUNT_MAX + 1}")


def test_processes_that_decide_at_the_same_time_keep_both_decisions(trust: TrustFile) -> None:
    threads = [threading.Thread(target=trust.decide_plugin, args=(f"p{number}", YES)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trust.read().plugins) == 8


def test_a_home_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="the decision was not stored"):
        TrustFile(tmp_path / "file" / "trust.json").decide_plugin("diary", YES)
    assert os.listdir(tmp_path) == ["file"]
