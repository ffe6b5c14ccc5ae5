"""`everthread doctor`: each thing that can be wrong is found, told with its fix, and makes the exit code 1."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.model_endpoint import model_endpoint

from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway.lock import GatewayLock, LockHolder
from everthread.config.settings import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Reply, ReplyState, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import MemoryProvider
from everthread.store.api_keys import ApiKey
from everthread.store.leases import Incident
from everthread.testing.model_server.server import ModelServer

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")
ME = "me"


class Picky(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        raise Rejected(self.name, "not that")


async def _say(runtime: Runtime) -> None:
    await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "hello"))
    ticket = await runtime.lifecycle.begin_turn(TERMINAL)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello"), Message(Role.ASSISTANT, "yes")], "yes")


async def _live(home: Path, *providers: MemoryProvider) -> None:
    async with Runtime(Settings(home), providers=providers) as runtime:
        await runtime.start()
        await runtime.lifecycle.cross(TERMINAL, New("Tea"), owner=ME)
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "is called Ana"), owner=ME)
        assert await runtime.sync_notes(ME) == ""
        await _say(runtime)
        assert await runtime.drain()


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_endpoint(models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Path:
    home = tmp_path_factory.mktemp("original") / "home"
    asyncio.run(_live(home))
    config = home / "config.toml"
    config.write_text(f'model = "mine/good"\n[providers.mine]\nbase_url = "{server.base_url}"\n')
    (home / ".env").write_text("A=1\n")
    (home / ".env").chmod(0o600)
    return home


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "home")
    return tmp_path / "home"


def doctor(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), "doctor", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=inherited | variables,
        timeout=18,
        check=False,
    )
    assert done.stderr == ""
    return done


def failed(home: Path, *arguments: str) -> dict[str, tuple[str, str]]:
    """What is wrong, by check, and the fix."""
    done = doctor(home, *arguments, "--json")
    told = json.loads(done.stdout)
    found = {check["check"]: (check["says"], check["fix"]) for check in told["checks"] if check["well"] is False}
    assert done.returncode == (1 if found else 0)
    assert told["well"] is (not found)
    return found


def in_home(home: Path, work: Any) -> None:
    async def change() -> None:
        async with Runtime(Settings(home)) as runtime:
            await work(runtime)

    asyncio.run(change())


def test_a_healthy_home_passes_every_check(home: Path) -> None:
    done = doctor(home)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "All checks passed."
    marks = {line.split()[1]: line.split()[0] for line in lines[:-1]}
    assert [name for name, mark in marks.items() if mark != "ok"] == ["platforms", "mcp"], "none configured"
    assert "mine/good answered" in done.stdout


def test_a_new_home_is_well_too_and_is_not_made(tmp_path: Path) -> None:
    assert failed(tmp_path / "none", "--offline") == {}
    assert not (tmp_path / "none").exists()


def test_a_model_that_does_not_answer_is_told_unless_offline(home: Path) -> None:
    text = (home / "config.toml").read_text()
    (home / "config.toml").write_text(text.replace("mine/good", "mine/bad"))
    says, fix = failed(home)["model"]
    assert "check the model's name" in says
    assert "everthread setup" in fix
    assert failed(home, "--offline") == {}


def test_mistakes_of_the_configuration_are_told_and_the_rest_is_left_out(home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nturns = 1\niterations = 0\n")
    found = failed(home)
    assert list(found) == ["configuration"]
    says, fix = found["configuration"]
    assert f"{home / 'config.toml'}:2" in says
    assert "1 more" in says
    assert "config validate" in fix


@pytest.mark.parametrize(
    ("name", "mode", "check"),
    [("", 0o755, "home"), ("everthread.db", 0o644, "home"), (".env", 0o640, "env"), ("memory/USER.md", 0o604, "home")],
)
def test_what_others_can_read_is_told_with_the_command_that_mends_it(
    home: Path, name: str, mode: int, check: str
) -> None:
    (home / name).chmod(mode)
    found = failed(home, "--offline")
    assert list(found) == [check]
    wanted = "600" if name else "700"
    assert found[check][1] == f"chmod {wanted} {home / name if name else home}"
    subprocess.run(found[check][1].split(), check=True)
    assert failed(home, "--offline") == {}


def test_a_damaged_store_is_told(home: Path) -> None:
    with (home / "everthread.db").open("r+b") as file:
        for page in range(3, 12):
            file.seek(4096 * page)
            file.write(b"\xaa" * 4096)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    assert "restore a backup" in found["store"][1]


def test_a_file_that_is_no_store_at_all_fails_the_check_of_the_store(home: Path) -> None:
    for file in home.glob("everthread.db-*"):
        file.unlink()
    (home / "everthread.db").write_bytes(b"\xaa" * 20_000)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    says, fix = found["store"]
    assert "damaged" in says
    assert "everthread restore FILE" in fix


def test_a_home_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("hello")
    [(says, fix)] = failed(tmp_path / "home", "--offline").values()
    assert says.endswith("is not a folder")
    assert "chmod" not in fix
    assert "--home" in fix


def test_a_home_that_cannot_be_looked_into_is_told_by_every_check_that_tries(tmp_path: Path) -> None:
    found = failed(tmp_path / ("x" * 300), "--offline")
    assert {"configuration", "sqlite", "store"} <= set(found)
    says, fix = found["sqlite"]
    assert says.endswith("everthread.db: File name too long")
    assert "--home" in fix


def test_mistakes_of_the_configuration_hide_nothing_of_the_store(home: Path) -> None:
    (home / "config.toml").write_text("model =")
    told = json.loads(doctor(home, "--json").stdout)
    states = {check["check"]: check["well"] for check in told["checks"]}
    assert [states[name] for name in ("sqlite", "store", "clock", "incidents", "hooks", "turns")] == [True] * 6
    assert [states[name] for name in ("notes", "mcp", "model")] == [None] * 3
    for file in home.glob("everthread.db-*"):
        file.unlink()
    (home / "everthread.db").write_bytes(b"\xaa" * 20_000)
    assert list(failed(home)) == ["configuration", "store"]


def test_another_programs_file_is_told(home: Path) -> None:
    for file in home.glob("everthread.db*"):
        file.unlink()
    with sqlite3.connect(home / "everthread.db") as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    (home / "everthread.db").chmod(0o600)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    assert "other program" in found["store"][0]


def test_parked_entries_are_told(tmp_path: Path) -> None:
    asyncio.run(_live(tmp_path / "home", Picky()))
    found = failed(tmp_path / "home", "--offline")
    assert list(found) == ["parked", "incidents"]
    assert "1 entry of picky" in found["parked"][0]
    assert "journal retry picky" in found["parked"][1]


def test_incidents_of_the_last_day_are_told(home: Path) -> None:
    async def happen(runtime: Runtime, ago_s: float) -> None:
        incident = Incident(time.time() - ago_s, "hook:on_session_reset", None, "it broke")
        await runtime.store.write(lambda uow: uow.leases.add_incident(incident))

    in_home(home, lambda runtime: happen(runtime, 90_000))
    assert failed(home, "--offline") == {}
    in_home(home, lambda runtime: happen(runtime, 60))
    assert "hook:on_session_reset: it broke" in failed(home, "--offline")["incidents"][0]


def test_an_answer_that_was_cut_off_is_told(home: Path) -> None:
    async def begin(runtime: Runtime) -> None:
        await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "hello again"))
        ticket = await runtime.lifecycle.begin_turn(TERMINAL)
        assert ticket is not None
        await runtime.lifecycle.abandon_turn(ticket)

    in_home(home, begin)
    found = failed(home, "--offline")
    assert "1 turn interrupted" in found["turns"][0]
    assert "start everthread" in found["turns"][1]


def test_files_of_notes_that_were_edited_are_told_and_mended_as_said(home: Path) -> None:
    (home / "memory" / "USER.md").write_text("is called Ana Lima\n")
    assert "USER.md" in failed(home, "--offline")["notes"][0]
    command = [sys.executable, "-m", "everthread", "--home", str(home), "memory", "list"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=18)
    assert failed(home, "--offline") == {}


def test_mcp_servers_that_do_not_start_are_told(home: Path) -> None:
    with (home / "config.toml").open("a") as file:
        file.write('[mcpServers.broken]\ncommand = "/nowhere/at-all"\n')
    assert "broken: " in failed(home, "--offline")["mcp"][0]


def test_a_clock_that_was_put_back_is_told(home: Path) -> None:
    with sqlite3.connect(home / "everthread.db") as store:
        store.execute("UPDATE sessions SET active_at = active_at + 90000")
    store.close()
    assert "behind" in failed(home, "--offline")["clock"][0]


def _reply(state: ReplyState, at: float, chat: str = "7") -> Reply:
    key = SessionKey.parse(f"agent:main:post:dm:{chat}")
    return Reply(f"turn-{chat}-{state.value}", key, "01SESSION", ME, "words", state, at)


def test_replies_that_may_not_have_arrived_are_named_with_chat_and_time(home: Path) -> None:
    async def leave(runtime: Runtime) -> None:
        now = runtime.clock.now()
        replies = (_reply(ReplyState.AMBIGUOUS, now - 60), _reply(ReplyState.FAILED, now - 2 * 86_400, "8"))
        for reply in replies:
            await runtime.store.write(lambda uow, reply=reply: uow.outbox.put_reply(reply))

    in_home(home, leave)
    says, fix = failed(home, "--offline")["gateway"]
    assert "a reply to post chat 7 of 20" in says
    assert "may not have arrived" in says
    assert "more" not in says, "that of the day before yesterday is told no more"
    assert "everthread sessions show 01SESSION" in fix


def test_what_waits_for_a_gateway_that_does_not_run_is_told(home: Path) -> None:
    async def leave(runtime: Runtime) -> None:
        await runtime.lifecycle.accept(Inbound(SessionKey.parse("agent:main:post:dm:7"), "post:anna", "hello?"))
        await runtime.store.write(lambda uow: uow.outbox.put_reply(_reply(ReplyState.READY, runtime.clock.now())))

    in_home(home, leave)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "1 conversation and 1 reply queued, but no gateway is running"
    assert fix == "everthread gateway start"


def test_http_that_others_can_reach_without_a_token_is_told(home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[gateway.http]\nhost = "0.0.0.0"\n')
    says, fix = failed(home, "--offline")["gateway"]
    assert "0.0.0.0, open to other machines" in says
    assert "everthread tokens new" in fix

    async def make(runtime: Runtime) -> None:
        token = ApiKey("hash", ME, "phone", runtime.clock.now())
        await runtime.store.write(lambda uow: uow.api_keys.add(token))

    in_home(home, make)
    assert failed(home, "--offline") == {}


def test_a_gateway_that_is_silent_and_a_platform_that_is_down_are_told(home: Path) -> None:
    now, lock = time.time(), GatewayLock(home)
    lock.acquire(LockHolder(os.getpid(), "1-A", now))
    down = {"post": gateway_report.PlatformReport(False, "the post office is shut")}
    gateway_report.write_report(home, gateway_report.GatewayReport("1-A", now, down))
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "post is down: the post office is shut"
    assert "platforms.post" in fix
    gateway_report.write_report(home, gateway_report.GatewayReport("1-A", now - 3600))
    says, fix = failed(home, "--offline")["gateway"]
    assert "no status report since" in says
    assert fix == "everthread gateway restart"
    gateway_report.write_report(home, gateway_report.GatewayReport("1-A", now))
    assert failed(home, "--offline") == {}
    lock.release()
