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
from tests.e2e.gateway_house import GatewayHouse, lines, model, silent_model, until

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
def house(tmp_path: Path, url: str) -> Iterator[GatewayHouse]:
    there = GatewayHouse(tmp_path / "home", url)
    yield there
    there.leave()


@pytest.fixture
def mute(tmp_path: Path, silence: str) -> Iterator[GatewayHouse]:
    there = GatewayHouse(tmp_path / "home", silence)
    yield there
    there.leave()


def answered(house: GatewayHouse, chat: str = "1", count: int = 1) -> None:
    until(lambda: len(house.out(chat)) == count, f"{count} answers in {chat}")


def in_order(house: GatewayHouse) -> bool:
    """Whether the end was seen through, rather than cut short."""
    return any(line["text"] == "gateway stopped" for line in lines(house.home / "logs" / "everthread.log"))


# --- One a home (S27) ------------------------------------------------------------------------------------------------


def test_s27_a_second_gateway_is_refused_while_the_first_lives(house: GatewayHouse) -> None:
    first = house.run()
    second = house.run(up=False)
    said, wrong = second.communicate(timeout=15)
    assert second.returncode == 75
    assert said == ""
    assert f"process {first.pid}, since" in wrong
    assert "everthread gateway stop" in wrong
    assert wrong.count("\n") == 1
    assert house.end(first)[0] == 0
    assert house.end(house.run())[0] == 0


def test_s27_a_stale_file_that_names_a_living_process_blocks_nobody(house: GatewayHouse) -> None:
    """The gateway was killed, and its number belongs to somebody else now."""
    first = house.run()
    first.kill()
    first.wait()
    file = house.home / "gateway.lock"
    left = json.loads(file.read_bytes())
    assert left["pid"] == first.pid
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        file.write_text(json.dumps({**left, "pid": stranger.pid}))
        assert house.ask("status").returncode == 1
        stopped = house.ask("stop")
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert stranger.poll() is None, "whoever has the number now is left alone"
        assert house.end(house.run())[0] == 0
        assert stranger.poll() is None
        stranger.kill()


def test_s27_a_live_gateway_whose_process_can_not_be_seen_still_blocks(house: GatewayHouse) -> None:
    """As with an unreadable process table: the number in the file leads nowhere, but the lock is held."""
    first = house.run()
    file = house.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for content in (json.dumps({**said, "pid": gone.pid}), "", "{half", "[]"):
        with file.open("r+") as opened:
            opened.truncate()
            opened.write(content)
        second = house.run(up=False)
        assert "already running for this home" in second.communicate(timeout=15)[1]
        assert second.returncode == 75
    assert house.end(first)[0] == 0


def test_stop_signals_nobody_in_another_container(house: GatewayHouse) -> None:
    first = house.run()
    file = house.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    with file.open("r+") as opened:
        opened.write(json.dumps({**said, "namespace": "pid:[1]"}))
    stopped = house.ask("stop")
    assert stopped.returncode == 75
    assert "another container" in stopped.stderr
    assert first.poll() is None


def test_the_files_of_a_gateway_are_for_its_owner_only(house: GatewayHouse) -> None:
    house.run()
    for name in ("gateway.lock", "gateway.json"):
        assert (house.home / name).stat().st_mode & 0o777 == 0o600


def test_looking_at_the_lock_all_the_time_keeps_nobody_from_starting(house: GatewayHouse) -> None:
    (house.home / "gateway.lock").touch(mode=0o600)
    look = (
        "import sys, pathlib, everthread.cli.commands.gateway.lock as lock\n"
        "while True: lock.read_lock(pathlib.Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", look, str(house.home)]) as looking:
        assert house.end(house.run())[0] == 0
        looking.kill()


# --- The end (S19, S28) ----------------------------------------------------------------------------------------------


def test_s19_a_shutdown_finalizes_every_session_that_was_served_and_closes_no_memory(house: GatewayHouse) -> None:
    process = house.run()
    for chat in ("1", "2", "3"):
        house.say("hello", chat)
    for chat in ("1", "2", "3"):
        answered(house, chat)
    code, took_s = house.end(process)
    assert code == 0
    assert took_s < 2.0 + MARGIN_S
    rung = lines(house.home / "hooks.jsonl")
    assert [(bell["hook"], bell["platform"]) for bell in rung] == [("finalize", "post")] * 3
    assert len({bell["session"] for bell in rung}) == 3
    assert [line for line in lines(house.home / "diary.jsonl") if "closed" in line] == []
    assert len(lines(house.home / "diary.jsonl")) == 3, "what was due is delivered"


def test_s19_a_hook_that_raises_at_the_shutdown_changes_nothing_else(house: GatewayHouse) -> None:
    process = house.run(hook="raises")
    house.say("hello", "1")
    house.say("hello", "2")
    answered(house, "1")
    answered(house, "2")
    code, took_s = house.end(process)
    assert (code, took_s < 2.0 + MARGIN_S) == (0, True)
    assert len({bell["session"] for bell in lines(house.home / "hooks.jsonl")}) == 2


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


def test_s28_a_provider_that_hangs_for_ever_holds_up_no_end_and_hears_of_it_later(house: GatewayHouse) -> None:
    process = house.run(diary_hangs=True)
    house.say("hello")
    answered(house)
    code, took_s = house.end(process)
    assert (code, lines(house.home / "diary.jsonl"), in_order(house)) == (0, [], True)
    assert took_s < 2.0 + MARGIN_S
    house.run()
    until(lambda: lines(house.home / "diary.jsonl") == [{"turn": "hello"}], "told")
    assert len(house.out()) == 1


def test_s28_a_platform_that_hangs_while_it_sends_and_while_it_closes_holds_up_no_end(house: GatewayHouse) -> None:
    process = house.run(slow_send=True, slow_close=True)
    house.say("hello")
    until(lambda: lines(house.home / "sending.jsonl"), "sending")
    code, took_s = house.end(process)
    assert (code, in_order(house)) == (0, True)
    assert took_s < 2.0 + MARGIN_S
    # Nobody knows whether it is out: it is shown, and not repeated.
    house.run()
    time.sleep(0.5)
    assert house.out() == []
    status = json.loads(house.ask("status", "--json").stdout)
    assert (status["replies_ambiguous"], status["replies_waiting"]) == (1, 0)


def test_an_end_is_in_time_even_if_something_holds_the_loop(house: GatewayHouse) -> None:
    process = house.run(holds_the_loop=True)
    house.say("hello")
    until(lambda: house.taken() == 1, "taken")
    code, took_s = house.end(process)
    assert code == 0
    assert took_s < 2.0 + MARGIN_S
    assert house.end(house.run())[0] == 0, "the lock went with it"


def test_a_thread_of_somebody_elses_that_never_ends_holds_up_no_end(house: GatewayHouse) -> None:
    process = house.run(thread=True)
    code, took_s = house.end(process)
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


def test_a_terminal_that_goes_away_ends_nothing(house: GatewayHouse) -> None:
    process = house.run()
    process.send_signal(signal.SIGHUP)
    house.say("hello")
    answered(house)
    assert process.poll() is None


def test_an_answer_that_ends_in_time_is_sent_before_the_end(tmp_path: Path) -> None:
    with model(delay_ms=15) as slow:
        house = GatewayHouse(tmp_path / "home", slow, drain_s=5.0)
        try:
            process = house.run()
            house.say("hello")
            until(lambda: house.taken() == 1, "taken")
            time.sleep(0.2)
            assert house.out() == []
            house.say("too late")
            code, _ = house.end(process)
            assert (code, len(house.out())) == (0, 1)
        finally:
            house.leave()


# --- The start -------------------------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_off_by_a_kill_is_given_once_after_the_start(tmp_path: Path) -> None:
    with model(delay_ms=10) as slow:
        house = GatewayHouse(tmp_path / "home", slow)
        try:
            first = house.run()
            house.say("hello")
            until(lambda: house.taken() == 1, "taken")
            time.sleep(0.3)
            first.kill()
            first.wait()
            assert house.out() == []
            house.run()
            answered(house)
            until(lambda: lines(house.home / "diary.jsonl") == [{"turn": "hello"}], "told")
            time.sleep(0.5)
            assert len(house.out()) == 1
            assert len(lines(house.home / "diary.jsonl")) == 1
        finally:
            house.leave()


def test_nothing_is_sent_that_nobody_asked_for(house: GatewayHouse) -> None:
    house.run()
    time.sleep(1.0)
    assert house.out() == []
    house.say("hello")
    answered(house)
    assert house.end(house.processes[0])[0] == 0
    house.run()
    time.sleep(1.0)
    assert len(house.out()) == 1, "a restart is nobody's business"


def test_a_platform_that_is_down_is_told_of_and_holds_nobody_up(house: GatewayHouse) -> None:
    process = house.run(down=True)
    until(lambda: json.loads((house.home / "gateway.json").read_text())["platforms"]["post"]["problem"], "told of")
    status = json.loads(house.ask("status", "--json").stdout)
    assert status["platforms"] == [{"platform": "post", "up": False, "problem": "the post office is shut"}]
    assert house.end(process)[0] == 0


def test_http_is_started_and_stopped_with_the_rest_and_its_port_is_known(tmp_path: Path, url: str) -> None:
    house = GatewayHouse(tmp_path / "home", url, http=True)
    try:
        process = house.run()
        status = json.loads(house.ask("status", "--json").stdout)
        assert (status["running"], status["pid"], status["port"]) == (True, process.pid, 4711)
        assert house.end(process)[0] == 0
        assert lines(house.home / "web.jsonl") == [{"web": "started"}, {"web": "stopped"}]
    finally:
        house.leave()


def test_a_request_over_http_that_waits_for_ever_holds_up_no_end(tmp_path: Path, silence: str) -> None:
    house = GatewayHouse(tmp_path / "home", silence, http=True)
    try:
        process = house.run(http=True)
        port = json.loads(house.ask("status", "--json").stdout)["port"]
        said = json.dumps({"model": "everthread", "messages": [{"role": "user", "content": "hello"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(f"{head}X-Session-Key: one\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
            until(lambda: json.loads((house.home / "gateway.json").read_text())["running_turns"] == 1, "running")
            code, took_s = house.end(process)
            assert code == 0
            assert took_s < 2.0 + MARGIN_S
            assert b"503" in client.recv(1000), "whoever waited is told"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    finally:
        house.leave()


def test_an_unknown_kind_of_platform_is_a_mistake_in_the_configuration(house: GatewayHouse) -> None:
    with (house.home / "config.toml").open("a") as config:
        config.write('[platforms.elsewhere]\nkind = "pigeon"\n')
    process = house.run(up=False)
    _, wrong = process.communicate(timeout=15)
    assert process.returncode == 78
    assert "platforms.elsewhere: unknown kind of platform 'pigeon'" in wrong
    assert wrong.count("\n") == 1


def test_systemd_is_told_when_it_is_up_alive_and_ending(house: GatewayHouse, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        process = house.run(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        house.end(process)
        said = b""
        while said != b"STOPPING=1":
            said = systemd.recv(100)


# --- The verbs -------------------------------------------------------------------------------------------------------


def test_status_says_what_the_gateway_has_done(house: GatewayHouse) -> None:
    before = house.ask("status", "--json")
    assert (before.returncode, json.loads(before.stdout)["running"]) == (1, False)
    process = house.run()
    house.say("hello")
    answered(house)
    until(lambda: json.loads((house.home / "gateway.json").read_text())["answered"] == 1, "reported")
    status = house.ask("status", "--json")
    told = json.loads(status.stdout)
    assert status.returncode == 0
    assert {"running": True, "pid": process.pid, "port": None, "draining": False}.items() <= told.items()
    assert {"taken": 1, "answered": 1, "turned_away": 0, "running_turns": 0}.items() <= told.items()
    assert {"replies_waiting": 0, "replies_ambiguous": 0, "replies_failed": 0, "journal_lag": 0}.items() <= told.items()
    assert told["loop_stall_ms_max"] >= 0
    assert told["since"].endswith("Z")
    words = house.ask("status").stdout
    assert f"The gateway is running (process {process.pid}, since" in words
    assert "1 received, 1 answered" in words


def test_stop_ends_the_gateway_wherever_it_was_started(house: GatewayHouse) -> None:
    process = house.run()
    stopped = house.ask("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"running": False, "pid": process.pid})
    assert process.wait(5) == 0
    again = house.ask("stop")
    assert again.returncode == 1
    assert "no gateway is running for this home" in again.stderr


def is_at_work(pid: int, home: Path) -> bool:
    """Whether it is our gateway: its number may be somebody else's by now, or nobody has asked how it ended."""
    try:
        return str(home).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_start_restart_and_stop_without_systemd(tmp_path: Path, url: str) -> None:
    house = GatewayHouse(tmp_path / "home", url)
    config = house.home / "config.toml"
    config.write_text(config.read_text().replace("[platforms.post]\nallow_all = true\n", ""))
    pids: list[int] = []
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    try:
        for verb in ("start", "restart"):
            done = house.ask(verb, "--json", env=env)
            assert done.returncode == 0, done.stderr
            pids.append(json.loads(done.stdout)["pid"])
            assert is_at_work(pids[-1], house.home)
        assert pids[0] != pids[1]
        assert house.ask("start", env=env).returncode == 75
        assert house.ask("stop", env=env).returncode == 0
        assert not is_at_work(pids[0], house.home)
        assert (house.home / "logs" / "gateway.out").stat().st_mode & 0o777 == 0o600
    finally:
        house.ask("stop", env=env)


def test_a_start_that_fails_says_why_and_with_which_code(house: GatewayHouse) -> None:
    """Its platform is of a kind that only the worker knows."""
    done = house.ask("start")
    assert done.returncode == 78
    assert "unknown kind of platform 'post'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert house.ask("status").returncode == 1
