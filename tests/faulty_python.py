"""Interpreter stand-in for the bridge that injects faults between the bridge and the plugin's process.

`faulty_python.py INTERPRETER FOLDER CHILD SOCKET` starts the real interpreter on its own socket and forwards messages
between real processes. Kills, stops, cuts and broken pipes are drawn from a seed. FOLDER contains `seed` and `rate`,
and `healed` once no more faults are to be injected; `requests-*`, `spoiled` and `minutes` are written there. Needs only
the standard library.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SLOW_S = 0.3
KILLED, LOST, CUT, TORN, HANG, STALL, SLOW = "killed", "lost", "cut", "torn", "hang", "stall", "slow"
FAULTS = (KILLED, LOST, CUT, TORN, HANG, STALL, SLOW)
"""In order: killed before it receives the request; killed after processing it; dies in the middle of its answer;
processes it and the pipe breaks while the process lives on; stopped and receives nothing; processes it and answers
nothing; slow.
"""


class Wire:
    """Wire format of the bridge: a four-byte length followed by JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def read(self) -> bytes | None:
        head = self._exactly(4)
        return self._exactly(struct.unpack(">I", head)[0]) if head is not None else None

    def send(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">I", len(body)) + body)

    def send_half(self, body: bytes) -> None:
        self.socket.sendall((struct.pack(">I", len(body)) + body)[: 4 + len(body) // 2])

    def _exactly(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                return None
            found += part
        return found


class Between:
    def __init__(self, interpreter: str, folder: str, child: str, number: str) -> None:
        self._folder = Path(folder)
        self._to_bridge = Wire(socket.socket(fileno=int(number)))
        ours, theirs = socket.socketpair()
        with theirs:
            command = [interpreter, child, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._to_plugin = Wire(ours)
        self._pending: dict[int, tuple[str, dict[str, Any]]] = {}

    def run(self) -> None:
        threading.Thread(target=self._answers, daemon=True).start()
        while (body := self._to_bridge.read()) is not None:
            self._request(body)
        self._die()

    def _request(self, body: bytes) -> None:
        asked = json.loads(body)
        fault = self._drawn() if asked["op"] != "end" else ""
        self._pending[asked["id"]] = (fault, asked)
        if fault == KILLED:
            self._die()
        if fault == HANG:
            os.kill(self._process.pid, signal.SIGSTOP)
        if fault == SLOW:
            time.sleep(SLOW_S)
        self._to_plugin.send(body)

    def _answers(self) -> None:
        while (body := self._to_plugin.read()) is not None:
            answer = json.loads(body)
            fault, asked = self._pending.pop(answer["id"])
            if asked["op"] == "tell" and not answer.get("error"):
                self._note("minutes", json.dumps([asked["session"], asked["hook"], asked["args"]]))
            if fault == LOST:
                self._die()
            if fault == CUT:
                self._to_bridge.send_half(body)
                self._die()
            if fault == TORN:
                self._to_bridge.socket.shutdown(socket.SHUT_RDWR)
                time.sleep(60)
            if fault != STALL:
                self._to_bridge.send(body)
        os._exit(self._process.wait() % 256)

    def _drawn(self) -> str:
        """Draw a fault from the seed, the person, and the number of requests of that person's processes so far."""
        person = Path(os.environ["HERMES_HOME"]).name
        number = self._note(f"requests-{person}", "")
        if (self._folder / "healed").exists():
            return ""
        dice = random.Random(f"{(self._folder / 'seed').read_text()} {person} {number}")
        fault = dice.choice(FAULTS) if dice.random() < float((self._folder / "rate").read_text()) else ""
        if fault:
            self._note("spoiled", fault)
        return fault

    def _note(self, name: str, text: str) -> int:
        """Append a line to a file. Return the offset of its end."""
        file = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{text}\n".encode())
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)

    def _die(self) -> None:
        self._process.kill()
        os._exit(137)


if __name__ == "__main__":
    Between(*sys.argv[1:]).run()
