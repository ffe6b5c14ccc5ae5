"""`everthread logs`."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.cli.commands.logs_home import KEY, ask, command, environment, everthread


def test_a_conversation_is_logged_with_ids_and_without_secrets(home: Path) -> None:
    assert "No log yet" in everthread(home, "logs").stderr
    told = ask(home, "hello, my number is 4711")
    done = everthread(home, "logs", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    [turn] = [entry for entry in entries if entry["text"] == "turn committed"]
    assert (turn["session"], turn["turn"], turn["status"]) == (told["session"], 1, "done")
    assert {"suspend"} <= {entry.get("boundary") for entry in entries}
    text = (home / "logs" / "everthread.log").read_text()
    assert KEY not in text
    assert "4711" not in text, "message texts must not be logged"
    assert (home / "logs" / "everthread.log").stat().st_mode & 0o777 == 0o600
    shown = everthread(home, "logs", "-n", "50").stdout
    assert f"INFO lifecycle: turn committed (session {told['session']}, turn 1)" in shown
    assert everthread(home, "logs", "-n", "1").stdout.count("\n") == 1


def test_forgetting_a_session_removes_its_lines_from_the_log(home: Path) -> None:
    session, other = ask(home, "hello")["session"], ask(home, "hello again")["session"]
    assert session in (home / "logs" / "everthread.log").read_text()
    assert everthread(home, "forget", session, "--yes").returncode == 0
    text = (home / "logs" / "everthread.log").read_text()
    assert session not in text
    assert other in text
    shown = everthread(home, "logs", "-n", "1").stdout
    assert shown.count("\n") == 1, "removed lines are not counted"
    assert other in shown


def test_the_text_of_an_error_is_shown_by_its_reference_until_it_is_forgotten(home: Path) -> None:
    text = (home / "config.toml").read_text()
    (home / "config.toml").write_text(text.replace("mine/good", "mine/bad"))
    assert everthread(home, "-p", "my mango is ripe", "--json").returncode != 0
    entries = [json.loads(line) for line in everthread(home, "logs", "-n", "1000", "--json").stdout.splitlines()]
    [entry] = [entry for entry in entries if entry.get("reference")]
    reference = entry["reference"]
    assert entry["text"] == f"the model did not answer: ModelUnknown (reference {reference})"
    assert (entry["owner"], bool(entry["session"])) == ("me", True)
    shown = everthread(home, "logs", "--reference", reference)
    assert shown.returncode == 0, shown.stderr
    assert f"(session {entry['session']}, owner me)" in shown.stdout
    assert "bad" in shown.stdout
    detail = json.loads(everthread(home, "logs", "--reference", reference, "--json").stdout)
    assert (detail["session"], detail["owner"], detail["logger"]) == (entry["session"], "me", "everthread.agent")
    assert everthread(home, "forget", entry["session"], "--yes").returncode == 0
    gone = everthread(home, "logs", "--reference", reference)
    assert gone.returncode != 0
    assert f"nothing is stored under the reference '{reference}'" in gone.stderr


def test_wrong_uses_of_a_reference_are_explained(home: Path) -> None:
    for arguments, says in (
        (("--reference", "abc"), "nothing is stored under the reference 'abc'"),
        (("--reference", "abc", "-f"), "exclude each other"),
        (("--reference", ""), "The reference is empty or too long"),
    ):
        done = everthread(home, "logs", *arguments)
        assert done.returncode != 0
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_commands_that_only_read_log_nothing(home: Path) -> None:
    everthread(home, "sessions", "list")
    everthread(home, "doctor", "--offline")
    assert not (home / "logs").exists()


def test_follow_prints_new_lines_also_after_rotation(home: Path) -> None:
    ask(home, "first")
    following = subprocess.Popen(
        command(home, "logs", "-f", "-n", "0", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environment(),
    )
    try:
        assert following.stdout is not None
        time.sleep(1.5)
        second = ask(home, "second")
        assert _comes(following.stdout, second["session"])
        file = home / "logs" / "everthread.log"
        file.rename(file.with_name("everthread.log.1"))
        third = ask(home, "third")
        assert _comes(following.stdout, third["session"])
        following.send_signal(signal.SIGINT)
        assert following.wait(5) == 130
        assert following.stderr is not None
        assert following.stderr.read().strip() == b""
    finally:
        following.kill()
        following.communicate()
    assert len(everthread(home, "logs", "-n", "1000", "--json").stdout.splitlines()) > 4, "rotated files must be read"


def _comes(stream: Any, session: str) -> bool:
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        if select.select([stream], [], [], 0.2)[0]:
            entry = json.loads(stream.readline())
            if entry.get("session") == session and entry["text"] == "turn committed":
                return True
    return False
