"""Escape sequences in stored text, read by the owner in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

from tests.attacks.attempts import Attempts
from tests.attacks.target import CLI_S_MAX, Target

_SEQUENCES = {
    "title": "\x1b]0;owned\x07",
    "clear screen": "\x1b[2J",
    "cursor home": "\x1b[1;1H",
    "colour": "\x1b[31m",
    "hyperlink": "\x1b]8;;http://localhost/\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;ZWNobw==\x07",
    "report": "\x1b[6n",
    "keyboard": "\x1b[>4;1m",
    "alternate screen": "\x1b[?1049h",
    "c1 csi": "\x9b31m",
    "c1 osc": "\x9d0;owned\x9c",
    "dcs": "\x1bP1$r0m\x1b\\",
    "reset": "\x1bc",
    "backspaces": "safe" + "\x08" * 4 + "evil",
    "carriage return": "rm -rf\rls",
    "bell": "\x07",
    "bidi override": "user\u202egpj.exe",
    "isolate": "\u2066abc\u2069",
    "delete": "a\x7fb",
}
_DANGEROUS = re.compile(
    "\x1b\\]0;owned|\x1b\\[2J\x1b?.?ESCAPE|\x1b\\]52|\x1b\\[6n|\x1b\\[>4|\x1b\\[\\?1049h|\x9b|\x9d|\x1bP1|\x1bc"
    "|safe\x08|rm -rf\rls|\x07|\u202e|\u2066|a\x7fb|\x1b\\]8;;http://localhost/"
)
_COMMANDS = (
    ("sessions", "list", "--all"),
    ("sessions", "tree"),
    ("recall", "escape"),
    ("boundaries",),
    ("logs",),
    ("doctor",),
    ("memory", "log"),
    ("cron", "list"),
    ("tokens", "list"),
    ("pairing", "list"),
    ("gateway", "status"),
)


async def attack(target: Target) -> Attempts:
    """Let the owner and a guest store every sequence, then read all of it in a terminal."""
    attempts = Attempts("escape sequences in a terminal")
    sessions: list[str] = []
    for number, (name, sequence) in enumerate(_SEQUENCES.items()):
        for person in ("owner", "bob"):
            answer = await target.say(person, f"escape {name} {sequence} end", f"escapes-{number}")
            session = answer.headers["X-Session-Id"]
            title = {"title": f"{number} {sequence}"[:90]}
            await target.ask("PATCH", f"/api/sessions/{session}", target.tokens[person], title)
            sessions.append(session)
    shown = [*_COMMANDS, *(("sessions", "show", session) for session in sessions[::6])]
    # A command that repeats its argument in an error message.
    shown += [("sessions", "show", " ".join(_SEQUENCES.values())), ("cron", "show", " ".join(_SEQUENCES.values()))]
    for command in shown:
        found = _describe(_in_terminal(target, *command))
        for name in _SEQUENCES:
            attempts.record(f"{name} shown by {' '.join(command[:2])}", found)
    return attempts


def _describe(output: str) -> str:
    found = _DANGEROUS.search(output)
    return f"raw {found[0]!r}" if found else ""


def _in_terminal(target: Target, *arguments: str) -> str:
    """Run a command on a pseudo terminal; return what the terminal receives."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "everthread", "--home", str(target.home), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "PAGER": "cat", "TERM": "xterm"},
    )
    os.close(follower)
    output, deadline = b"", time.monotonic() + CLI_S_MAX
    try:
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.2)[0]:
                try:
                    part = os.read(leader, 65_536)
                except OSError:
                    break
                if not part:
                    break
                output += part
            elif process.poll() is not None:
                break
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    # The terminal itself turns a line feed into a carriage return and a line feed.
    return output.decode(errors="replace").replace("\r\n", "\n")
