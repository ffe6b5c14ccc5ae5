"""The gateway as a process: one a home, told to end, killed, started again."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.gateway_process_fixture import GatewayHouse, lines, model, silent_model, until

MARGIN_S = 1.0
"""How long after its bound a gateway may take to be gone."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with model() as address:
        yield address


@pytest.fixture(scope="module")
def silence() -> Iterator[str]:
    with silent_model() as address:
        yield address


@pytest.fixture
def core(tmp_path: Path, url: str) -> Iterator[GatewayHouse]:
    there = GatewayHouse(tmp_path / "home", url)
    yield there
    there.leave()


@pytest.fixture
def mute(tmp_path: Path, silence: str) -> Iterator[GatewayHouse]:
    there = GatewayHouse(tmp_path / "home", silence)
    yield there
    there.leave()


def answered(core: GatewayHouse, chat: str = "1", count: int = 1) -> None:
    until(lambda: len(core.out(chat)) == count, f"{count} answers in {chat}")


def in_order(core: GatewayHouse) -> bool:
    """Whether the end was seen through, rather than cut short."""
    return any(line["text"] == "gateway stopped" for line in lines(core.home / "logs" / "everthread.log"))


# --- One a home (S27) ------------------------------------------------------------------------------------------------


def test_s27_a_second_gateway_is_refused_while_the_first_lives(core: GatewayHouse) -> None:
    first = core.run()
    second = core.run(up=False)
    said, wrong = second.communicate(timeout=15)
    assert second.returncode == 75
    assert said == ""
    assert f"process {first.pid}, since" in wrong
    assert "everthread gateway stop" in wrong
    assert wrong.count("\n") == 1
    assert core.end(first)[0] == 0
    assert core.end(core.run())[0] == 0


def test_s27_a_stale_file_that_names_a_living_process_blocks_nobody(core: GatewayHouse) -> None:
    """The gateway was killed, and its number belongs to somebody else now."""
    first = core.run()
    first.kill()
    first.wait()
    file = core.home / "gateway.lock"
    left = json.loads(file.read_bytes())
    assert left["pid"] == first.pid
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        file.write_text(json.dumps({**left, "pid": stranger.pid}))
        assert core.ask("status").returncode == 1
        stopped = core.ask("stop")
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert stranger.poll() is None, "whoever has the number now is left alone"
        assert core.end(core.run())[0] == 0
        assert stranger.poll() is None
        stranger.kill()


def test_s27_a_live_gateway_whose_process_can_not_be_seen_still_blocks(core: GatewayHouse) -> None:
    """As with an unreadable process table: the number in the file leads nowhere, but the lock is held."""
    first = core.run()
    file = core.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for content in (json.dumps({**said, "pid": gone.pid}), "", "{half", "[]"):
        with file.open("r+") as opened:
            opened.truncate()
            opened.write(content)
        second = core.run(up=False)
        assert "already running for this home" in second.communicate(timeout=15)[1]
        assert second.returncode == 75
    assert core.end(first)[0] == 0


def test_stop_signals_nobody_in_another_container(core: GatewayHouse) -> None:
    first = core.run()
    file = core.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    with file.open("r+") as opened:
        opened.write(json.dumps({**said, "namespace": "pid:[1]"}))
    stopped = core.ask("stop")
    assert stopped.returncode == 75
    assert "another container" in stopped.stderr
    assert first.poll() is None


def test_the_files_of_a_gateway_are_for_its_owner_only(core: GatewayHouse) -> None:
    core.run()
    for name in ("gateway.lock", "gateway.json"):
        assert (core.home / name).stat().st_mode & 0o777 == 0o600


def test_looking_at_the_lock_all_the_time_keeps_nobody_from_starting(core: GatewayHouse) -> None:
    (core.home / "gateway.lock").touch(mode=0o600)
    look = (
        "import sys, pathlib, everthread.cli.commands.gateway.lock as lock\n"
        "while True: lock.read_lock(pathlib.Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", look, str(core.home)]) as looking:
        assert core.end(core.run())[0] == 0
        looking.kill()


# --- The end (S19, S28) ----------------------------------------------------------------------------------------------


def test_s19_a_shutdown_finalizes_every_session_that_was_served_and_closes_no_memory(core: GatewayHouse) -> None:
    process = core.run()
    for chat in ("1", "2", "3"):
        core.say("hello", chat)
    for chat in ("1", "2", "3"):
        answered(core, chat)
    code, took_s = core.end(process)
    assert code == 0
    assert took_s < 2.0 + MARGIN_S
    rung = lines(core.home / "hooks.jsonl")
    assert [(bell["hook"], bell["platform"]) for bell in rung] == [("finalize", "post")] * 3
    assert len({bell["session"] for bell in rung}) == 3
    assert [line for line in lines(core.home / "diary.jsonl") if "closed" in line] == []
    assert len(lines(core.home / "diary.jsonl")) == 3, "what was due is delivered"


def test_s19_a_hook_that_raises_at_the_shutdown_changes_nothing_else(core: GatewayHouse) -> None:
    process = core.run(hook="raises")
    core.say("hello", "1")
    core.say("hello", "2")
    answered(core, "1")
    answered(core, "2")
    code, took_s = core.end(process)
    assert (code, took_s < 2.0 + MARGIN_S) == (0, True)
    assert len({bell["session"] for bell in lines(core.home / "hooks.jsonl")}) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s28_a_model_that_never_answers_holds_up_no_end_and_its_message_is_answered_later(
    mute: GatewayHouse, url: str, number: int
) -> None:
    process = mute.run()
    mute.say("hello")
    until(lambda: mute.taken() == 1, "taken")
    time.sleep(0.3)
    code, took_s = mute.end(process, number)
    assert code == 0, process.stderr and process.stderr.read()
    assert took_s < 2.0 + MARGIN_S
    assert (mute.out(), in_order(mute)) == ([], True)
    assert lines(mute.home / "hooks.jsonl"), "its session was finalized all the same"
    again = GatewayHouse(mute.home, url)
    mute.processes.append(again.run())
    answered(again)
    time.sleep(0.5)
    assert len(again.out()) == 1


def test_s28_a_provider_that_hangs_for_ever_holds_up_no_end_and_hears_of_it_later(core: GatewayHouse) -> None:
    process = core.run(diary_hangs=True)
    core.say("hello")
    answered(core)
    code, took_s = core.end(process)
    assert (code, lines(core.home / "diary.jsonl"), in_order(core)) == (0, [], True)
    assert took_s < 2.0 + MARGIN_S
    core.run()
    until(lambda: lines(core.home / "diary.jsonl") == [{"turn": "hello"}], "told")
    assert len(core.out()) == 1


def test_s28_a_platform_that_hangs_while_it_sends_and_while_it_closes_holds_up_no_end(core: GatewayHouse) -> None:
    process = core.run(slow_send=True, slow_close=True)
    core.say("hello")
    until(lambda: lines(core.home / "sending.jsonl"), "sending")
    code, took_s = core.end(process)
    assert (code, in_order(core)) == (0, True)
    assert took_s < 2.0 + MARGIN_S
    # Nobody knows whether it is out: it is shown, and not repeated.
    core.run()
    time.sleep(0.5)
    assert core.out() == []
    status = json.loads(core.ask("status", "--json").stdout)
    assert (status["replies_ambiguous"], status["replies_waiting"]) == (1, 0)


def test_an_end_is_in_time_even_if_something_holds_the_loop(core: GatewayHouse) -> None:
    process = core.run(holds_the_loop=True)
    core.say("hello")
    until(lambda: core.taken() == 1, "taken")
    code, took_s = core.end(process)
    assert code == 0
    assert took_s < 2.0 + MARGIN_S
    assert core.end(core.run())[0] == 0, "the lock went with it"


def test_a_thread_of_somebody_elses_that_never_ends_holds_up_no_end(core: GatewayHouse) -> None:
    process = core.run(thread=True)
    code, took_s = core.end(process)
    assert code == 0
    assert took_s < 2.0


def test_a_second_signal_ends_it_at_once(mute: GatewayHouse) -> None:
    process = mute.run()
    mute.say("hello")
    until(lambda: mute.taken() == 1, "taken")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    code, took_s = mute.end(process)
    assert code == 130
    assert took_s < 0.5


def test_a_terminal_that_goes_away_ends_nothing(core: GatewayHouse) -> None:
    process = core.run()
    process.send_signal(signal.SIGHUP)
    core.say("hello")
    answered(core)
    assert process.poll() is None


def test_an_answer_that_ends_in_time_is_sent_before_the_end(tmp_path: Path) -> None:
    with model(delay_ms=15) as slow:
        core = GatewayHouse(tmp_path / "home", slow, drain_s=5.0)
        try:
            process = core.run()
            core.say("hello")
            until(lambda: core.taken() == 1, "taken")
            time.sleep(0.2)
            assert core.out() == []
            core.say("too late")
            code, _ = core.end(process)
            assert (code, len(core.out())) == (0, 1)
        finally:
            core.leave()


# --- The start -------------------------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_off_by_a_kill_is_given_once_after_the_start(tmp_path: Path) -> None:
    with model(delay_ms=10) as slow:
        core = GatewayHouse(tmp_path / "home", slow)
        try:
            first = core.run()
            core.say("hello")
            until(lambda: core.taken() == 1, "taken")
            time.sleep(0.3)
            first.kill()
            first.wait()
            assert core.out() == []
            core.run()
            answered(core)
            until(lambda: lines(core.home / "diary.jsonl") == [{"turn": "hello"}], "told")
            time.sleep(0.5)
            assert len(core.out()) == 1
            assert len(lines(core.home / "diary.jsonl")) == 1
        finally:
            core.leave()


def test_nothing_is_sent_that_nobody_asked_for(core: GatewayHouse) -> None:
    core.run()
    time.sleep(1.0)
    assert core.out() == []
    core.say("hello")
    answered(core)
    assert core.end(core.processes[0])[0] == 0
    core.run()
    time.sleep(1.0)
    assert len(core.out()) == 1, "a restart is nobody's business"


def test_a_platform_that_is_down_is_told_of_and_holds_nobody_up(core: GatewayHouse) -> None:
    process = core.run(down=True)
    until(lambda: json.loads((core.home / "gateway.json").read_text())["platforms"]["post"]["problem"], "told of")
    status = json.loads(core.ask("status", "--json").stdout)
    assert status["platforms"] == [{"platform": "post", "up": False, "problem": "the post office is shut"}]
    assert core.end(process)[0] == 0


def test_http_is_started_and_stopped_with_the_rest_and_its_port_is_known(tmp_path: Path, url: str) -> None:
    core = GatewayHouse(tmp_path / "home", url, http=True)
    try:
        process = core.run()
        status = json.loads(core.ask("status", "--json").stdout)
        assert (status["running"], status["pid"], status["port"]) == (True, process.pid, 4711)
        assert core.end(process)[0] == 0
        assert lines(core.home / "web.jsonl") == [{"web": "started"}, {"web": "stopped"}]
    finally:
        core.leave()


def test_a_request_over_http_that_waits_for_ever_holds_up_no_end(tmp_path: Path, silence: str) -> None:
    core = GatewayHouse(tmp_path / "home", silence, http=True)
    try:
        process = core.run(http=True)
        port = json.loads(core.ask("status", "--json").stdout)["port"]
        said = json.dumps({"model": "everthread", "messages": [{"role": "user", "content": "hello"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(f"{head}X-Session-Key: one\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
            until(lambda: json.loads((core.home / "gateway.json").read_text())["running_turns"] == 1, "running")
            code, took_s = core.end(process)
            assert code == 0
            assert took_s < 2.0 + MARGIN_S
            assert b"503" in client.recv(1000), "whoever waited is told"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    finally:
        core.leave()


def test_an_unknown_kind_of_platform_is_a_mistake_in_the_configuration(core: GatewayHouse) -> None:
    with (core.home / "config.toml").open("a") as config:
        config.write('[platforms.elsewhere]\nkind = "pigeon"\n')
    process = core.run(up=False)
    _, wrong = process.communicate(timeout=15)
    assert process.returncode == 78
    assert "platforms.elsewhere: unknown kind of platform 'pigeon'" in wrong
    assert wrong.count("\n") == 1


def test_systemd_is_told_when_it_is_up_alive_and_ending(core: GatewayHouse, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        process = core.run(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        core.end(process)
        said = b""
        while said != b"STOPPING=1":
            said = systemd.recv(100)


# --- The verbs -------------------------------------------------------------------------------------------------------


def test_status_says_what_the_gateway_has_done(core: GatewayHouse) -> None:
    before = core.ask("status", "--json")
    assert (before.returncode, json.loads(before.stdout)["running"]) == (1, False)
    process = core.run()
    core.say("hello")
    answered(core)
    until(lambda: json.loads((core.home / "gateway.json").read_text())["answered"] == 1, "reported")
    status = core.ask("status", "--json")
    told = json.loads(status.stdout)
    assert status.returncode == 0
    assert {"running": True, "pid": process.pid, "port": None, "draining": False}.items() <= told.items()
    assert {"taken": 1, "answered": 1, "turned_away": 0, "running_turns": 0}.items() <= told.items()
    assert {"replies_waiting": 0, "replies_ambiguous": 0, "replies_failed": 0, "journal_lag": 0}.items() <= told.items()
    assert told["loop_stall_ms_max"] >= 0
    assert told["since"].endswith("Z")
    words = core.ask("status").stdout
    assert f"The gateway is running (process {process.pid}, since" in words
    assert "1 received, 1 answered" in words


def test_stop_ends_the_gateway_wherever_it_was_started(core: GatewayHouse) -> None:
    process = core.run()
    stopped = core.ask("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"running": False, "pid": process.pid})
    assert process.wait(5) == 0
    again = core.ask("stop")
    assert again.returncode == 1
    assert "no gateway is running for this home" in again.stderr


def is_at_work(pid: int, home: Path) -> bool:
    """Whether it is our gateway: its number may be somebody else's by now, or nobody has asked how it ended."""
    try:
        return str(home).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_start_restart_and_stop_without_systemd(tmp_path: Path, url: str) -> None:
    core = GatewayHouse(tmp_path / "home", url)
    config = core.home / "config.toml"
    config.write_text(config.read_text().replace("[platforms.post]\nallow_all = true\n", ""))
    pids: list[int] = []
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    try:
        for verb in ("start", "restart"):
            done = core.ask(verb, "--json", env=env)
            assert done.returncode == 0, done.stderr
            pids.append(json.loads(done.stdout)["pid"])
            assert is_at_work(pids[-1], core.home)
        assert pids[0] != pids[1]
        assert core.ask("start", env=env).returncode == 75
        assert core.ask("stop", env=env).returncode == 0
        assert not is_at_work(pids[0], core.home)
        assert (core.home / "logs" / "gateway.out").stat().st_mode & 0o777 == 0o600
    finally:
        core.ask("stop", env=env)


def test_a_start_that_fails_says_why_and_with_which_code(core: GatewayHouse) -> None:
    """Its platform is of a kind that only the worker knows."""
    done = core.ask("start")
    assert done.returncode == 78
    assert "unknown kind of platform 'post'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert core.ask("status").returncode == 1
