"""`everthread gateway run`: serving, and a graceful shutdown within its limit."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli.commands.gateway.gateway_home import answered
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, lines, model, silent_model, until

MARGIN_S = 1.0
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def silence() -> Iterator[str]:
    with silent_model() as address:
        yield address


@pytest.fixture
def mute(tmp_path: Path, silence: str) -> Iterator[GatewayProcessFixture]:
    fixture = GatewayProcessFixture(tmp_path / "home", silence)
    yield fixture
    fixture.leave()


def in_order(core: GatewayProcessFixture) -> bool:
    """Check that the log records a complete shutdown."""
    return any(line["text"] == "gateway stopped" for line in lines(core.home / "logs" / "everthread.log"))


def closed(core: GatewayProcessFixture) -> list[str]:
    """Return the sessions whose memory was closed, once for each close: an entry may be delivered again."""
    ends = {line["key"]: line["closed"] for line in lines(core.home / "diary.jsonl") if "closed" in line}
    return list(ends.values())


def finalized(core: GatewayProcessFixture) -> list[str]:
    """Return the sessions that plugins were told to finalize."""
    return [call["session"] for call in lines(core.home / "hooks.jsonl") if call["hook"] == "finalize"]


# --- Shutdown (S19, S28) ---------------------------------------------------------------------------------------------


def test_s19_a_shutdown_finalizes_served_sessions_and_closes_no_memory(core: GatewayProcessFixture) -> None:
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
    assert len(lines(core.home / "diary.jsonl")) == 3, "due entries must be delivered to memory"


def test_s19_a_raising_shutdown_hook_changes_nothing_else(core: GatewayProcessFixture) -> None:
    process = core.run(hook="raises")
    core.say("hello", "1")
    core.say("hello", "2")
    answered(core, "1")
    answered(core, "2")
    code, took_s = core.end(process)
    assert (code, took_s < 2.0 + MARGIN_S) == (0, True)
    assert len({bell["session"] for bell in lines(core.home / "hooks.jsonl")}) == 2


def test_s19_a_shutdown_after_a_compression_finalizes_the_continuation_only(tmp_path: Path) -> None:
    with model(say="## Facts\n- boats") as summarizing:
        core = GatewayProcessFixture(tmp_path / "home", summarizing)
        with (core.home / "config.toml").open("a") as config:
            config.write("[compression]\ntail_tokens = 100\n")
        try:
            process = core.run()
            for count in range(1, 4):
                core.say("tell me more " * 100)
                answered(core, count=count)
            core.say("/compress")
            answered(core, count=4)
            assert "The full text is still stored" in core.out()[-1]
            assert core.end(process)[0] == 0
            rows = json.loads(core.cli("boundaries", "--json").stdout)
            ((old, tip),) = ((row["from"], row["to"]) for row in rows if row["boundary"] == "compress")
            finalized = [{"hook": "finalize", "session": tip, "platform": "post"}]
            assert lines(core.home / "hooks.jsonl") == finalized
            assert closed(core) == [old]
            # A process without a message has served nothing.
            assert core.end(core.run())[0] == 0
            assert lines(core.home / "hooks.jsonl") == finalized
            process = core.run()
            core.say("hello")
            answered(core, count=5)
            assert core.end(process)[0] == 0
            assert lines(core.home / "hooks.jsonl") == finalized * 2
            assert closed(core) == [old]
        finally:
            core.leave()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_s20_an_expired_session_is_ended_once_if_the_process_is_restarted(
    core: GatewayProcessFixture, number: int
) -> None:
    process = core.run(idle_s=HOUR_S)
    core.say("hello")
    answered(core)
    core.set_clock(2 * HOUR_S)
    until(lambda: closed(core) and finalized(core), "the end of the first session")
    core.end(process, number)
    core.set_clock(4 * HOUR_S)
    core.run(idle_s=HOUR_S)
    core.say("hello again")
    until(lambda: {"turn": "hello again"} in lines(core.home / "diary.jsonl"), "the second turn")
    core.set_clock(6 * HOUR_S)
    # It ends in the same way: by then all timers have been checked again.
    until(lambda: len(closed(core)) > 1 and finalized(core)[-1] == closed(core)[1], "the end of the second session")
    assert core.end(core.processes[-1])[0] == 0
    first, second = closed(core)
    assert first != second
    called = [(call["hook"], call["session"]) for call in lines(core.home / "hooks.jsonl")]
    if number == signal.SIGKILL and called[:2] == [("finalize", first)] * 2:
        # Killed after the call, before it was recorded: hooks are called at least once.
        del called[0]
    assert called == [("finalize", first), ("reset", second), ("finalize", second)]
    assert [line["turn"] for line in lines(core.home / "diary.jsonl") if "turn" in line] == ["hello", "hello again"]
    rows = json.loads(core.cli("boundaries", "--json").stdout)
    assert sorted(row["boundary"] for row in rows) == ["expire", "expire", "new", "new"]


def test_s30_a_message_after_new_is_answered_in_the_new_session_by_the_next_process(tmp_path: Path, url: str) -> None:
    """m2 and m3 wait behind the answer to m1 when /new arrives; the process is killed before it answers m4."""
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(15)
        first = GatewayProcessFixture(tmp_path / "home", f"http://127.0.0.1:{endpoint.getsockname()[1]}/v1")
        try:
            process = first.run()
            first.say("m1")
            with endpoint.accept()[0]:
                for text in ("m2", "m3", "/new", "m4"):
                    first.say(text)
                answered(first)
                until(lambda: first.taken() == 5, "taken")
                first.end(process, signal.SIGKILL)
        finally:
            first.leave()
    (confirmation,) = first.out()
    assert 'The answer to "m1" was stopped' in confirmation
    assert 'Set aside without an answer: "m2", "m3".' in confirmation
    core = GatewayProcessFixture(first.home, url)
    try:
        process = core.run()
        answered(core, count=2)
        until(lambda: {"turn": "m4"} in lines(core.home / "diary.jsonl"), "the delivery of m4")
        assert core.end(process)[0] == 0
    finally:
        core.leave()
    assert len(core.out()) == 2
    told = [line["turn"] for line in lines(core.home / "diary.jsonl") if "turn" in line]
    assert [text for text in told if text != "m1"] == ["m4"], "messages set aside are not delivered"
    rows = json.loads(core.cli("boundaries", "--json").stdout)
    ((old, new),) = ((row["from"], row["to"]) for row in rows if row["boundary"] == "new" and row["from"])
    assert said_in(core, new) == [("m4", "done")]
    assert sorted(said_in(core, old)) == [("m1", "late"), ("m2", "set_aside"), ("m3", "set_aside")]


def said_in(core: GatewayProcessFixture, session_id: str) -> list[tuple[str, str]]:
    """Return the messages of a session, with the state of their turns."""
    shown = json.loads(core.cli("sessions", "show", session_id, "--json").stdout)
    return [(turn["messages"][0]["content"], turn["status"]) for turn in shown["transcript"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s28_a_hanging_model_does_not_delay_the_shutdown_and_is_asked_again_later(
    mute: GatewayProcessFixture, url: str, number: int
) -> None:
    process = mute.run()
    mute.say("hello")
    until(lambda: mute.taken() == 1, "taken")
    time.sleep(0.3)
    code, took_s = mute.end(process, number)
    assert code == 0, process.stderr and process.stderr.read()
    assert took_s < 2.0 + MARGIN_S
    assert (mute.out(), in_order(mute)) == ([], True)
    assert lines(mute.home / "hooks.jsonl"), "the session must be finalized anyway"
    again = GatewayProcessFixture(mute.home, url)
    mute.processes.append(again.run())
    answered(again)
    time.sleep(0.5)
    assert len(again.out()) == 1


def test_s28_a_hanging_provider_does_not_delay_the_shutdown_and_is_served_later(core: GatewayProcessFixture) -> None:
    process = core.run(diary_hangs=True)
    core.say("hello")
    answered(core)
    code, took_s = core.end(process)
    assert (code, lines(core.home / "diary.jsonl"), in_order(core)) == (0, [], True)
    assert took_s < 2.0 + MARGIN_S
    core.run()
    until(lambda: lines(core.home / "diary.jsonl") == [{"turn": "hello"}], "told")
    assert len(core.out()) == 1


def test_s28_a_hanging_platform_does_not_delay_the_shutdown(core: GatewayProcessFixture) -> None:
    process = core.run(slow_send=True, slow_close=True)
    core.say("hello")
    until(lambda: lines(core.home / "sending.jsonl"), "sending")
    code, took_s = core.end(process)
    assert (code, in_order(core)) == (0, True)
    assert took_s < 2.0 + MARGIN_S
    # The result of the send is unknown: the reply is reported as ambiguous and not repeated.
    core.run()
    time.sleep(0.5)
    assert core.out() == []
    status = json.loads(core.ask("status", "--json").stdout)
    assert (status["replies_ambiguous"], status["replies_waiting"]) == (1, 0)


def test_the_shutdown_is_in_time_even_if_the_event_loop_is_blocked(core: GatewayProcessFixture) -> None:
    process = core.run(holds_the_loop=True)
    core.say("hello")
    until(lambda: core.taken() == 1, "taken")
    code, took_s = core.end(process)
    assert code == 0
    assert took_s < 2.0 + MARGIN_S
    assert core.end(core.run())[0] == 0, "the lock must be released"


def test_a_foreign_thread_does_not_delay_the_shutdown(core: GatewayProcessFixture) -> None:
    process = core.run(thread=True)
    code, took_s = core.end(process)
    assert code == 0
    assert took_s < 2.0


def test_a_second_signal_exits_at_once(mute: GatewayProcessFixture) -> None:
    process = mute.run()
    mute.say("hello")
    until(lambda: mute.taken() == 1, "taken")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    code, took_s = mute.end(process)
    assert code == 130
    assert took_s < 0.5


def test_closing_the_terminal_does_not_stop_the_gateway(core: GatewayProcessFixture) -> None:
    process = core.run()
    process.send_signal(signal.SIGHUP)
    core.say("hello")
    answered(core)
    assert process.poll() is None


def test_an_answer_finished_in_time_is_sent_before_the_shutdown(tmp_path: Path) -> None:
    with model(delay_ms=15) as slow:
        core = GatewayProcessFixture(tmp_path / "home", slow, drain_s=5.0)
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


# --- Start-up --------------------------------------------------------------------------------------------------------


def test_an_answer_cut_off_by_a_kill_is_sent_once_after_the_start(tmp_path: Path) -> None:
    with model(delay_ms=10) as slow:
        core = GatewayProcessFixture(tmp_path / "home", slow)
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


def test_no_unrequested_message_is_sent(core: GatewayProcessFixture) -> None:
    core.run()
    time.sleep(1.0)
    assert core.out() == []
    core.say("hello")
    answered(core)
    assert core.end(core.processes[0])[0] == 0
    core.run()
    time.sleep(1.0)
    assert len(core.out()) == 1, "a restart must send no message"


def test_a_platform_that_is_down_is_reported_and_delays_nothing(core: GatewayProcessFixture) -> None:
    process = core.run(down=True)
    until(lambda: json.loads((core.home / "gateway.json").read_text())["platforms"]["post"]["problem"], "told of")
    status = json.loads(core.ask("status", "--json").stdout)
    assert status["platforms"] == [{"platform": "post", "up": False, "problem": "the post office is shut"}]
    assert core.end(process)[0] == 0


def test_http_starts_and_stops_with_the_gateway_and_its_port_is_known(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url, http=True)
    try:
        process = core.run()
        status = json.loads(core.ask("status", "--json").stdout)
        assert (status["running"], status["pid"], status["port"]) == (True, process.pid, 4711)
        assert core.end(process)[0] == 0
        assert lines(core.home / "web.jsonl") == [{"web": "started"}, {"web": "stopped"}]
    finally:
        core.leave()


def test_a_hanging_http_request_does_not_delay_the_shutdown(tmp_path: Path, silence: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", silence, http=True)
    try:
        process = core.run(http=True)
        port = json.loads(core.ask("status", "--json").stdout)["port"]
        said = json.dumps({"model": "everthread", "messages": [{"role": "user", "content": "hello"}]})
        token = (core.home / "local.token").read_text().strip()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(f"{head}X-Session-Key: one\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
            until(lambda: json.loads((core.home / "gateway.json").read_text())["running_turns"] == 1, "running")
            code, took_s = core.end(process)
            assert code == 0
            assert took_s < 2.0 + MARGIN_S
            assert b"503" in client.recv(1000), "the waiting client must get a response"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    finally:
        core.leave()


def test_the_start_names_the_command_that_shows_the_token(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url, http=True)
    try:
        process = core.run(http=True)
        assert process.stdout is not None
        assert "everthread tokens show" in process.stdout.readline()
        token = (core.home / "local.token").read_text().strip()
        assert token not in (core.home / "logs" / "everthread.log").read_text()
        assert core.end(process)[0] == 0
        assert "every request is refused" in core.cli("tokens", "revoke", "local").stdout
        process = core.run(http=True)
        assert core.end(process)[0] == 0
        assert process.stderr is not None
        assert "everthread tokens new NAME" in process.stderr.read()
        assert not (core.home / "local.token").exists()
    finally:
        core.leave()


def test_the_start_reports_an_automatic_token_without_its_text(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url, http=True)
    try:
        assert core.end(core.run(http=True))[0] == 0
        (core.home / "local.token").unlink()
        process = core.run(http=True)
        assert core.end(process)[0] == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "its text is not in this home" in said
        assert "everthread tokens revoke local" in said
    finally:
        core.leave()


def test_a_webhook_without_a_scheme_does_not_stop_the_gateway_and_is_named(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url, http=True)
    config = core.home / "config.toml"
    config.write_text(config.read_text() + '[gateway.webhooks.ci]\nsecret_env = "CI_SECRET"\n')
    try:
        process = core.run(http=True, env={"CI_SECRET": "hidden words"})
        assert core.end(process)[0] == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "the webhook ci has no scheme and is disabled; add scheme = " in said
        assert "hidden words" not in said
    finally:
        core.leave()


def test_a_gateway_without_http_creates_no_token(core: GatewayProcessFixture) -> None:
    process = core.run()
    assert core.end(process)[0] == 0
    assert not (core.home / "local.token").exists()
    assert core.cli("tokens", "list", "--json").stdout.strip() == "[]"


def test_the_status_of_a_gateway_on_a_socket_names_the_socket(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url, http=True)
    config = core.home / "config.toml"
    config.write_text(config.read_text().replace("port = 0\n", 'socket = "http.sock"\n'))
    path = str(core.home / "http.sock")
    try:
        process = core.run(http=True)
        status = json.loads(core.ask("status", "--json").stdout)
        assert (status["port"], status["socket"]) == (None, path)
        assert f"HTTP on {path}" in core.ask("status").stdout
        assert '"check": "gateway",\n      "well": true' in core.cli("doctor", "--offline", "--json").stdout
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.kill()
        process.wait()
        assert Path(path).exists(), "a killed gateway leaves its socket"
        again = core.run(http=True)
        assert core.end(again)[0] == 0
        assert not Path(path).exists()
    finally:
        core.leave()


def test_an_unknown_platform_is_a_configuration_error(core: GatewayProcessFixture) -> None:
    with (core.home / "config.toml").open("a") as config:
        config.write('[platforms.elsewhere]\nkind = "pigeon"\n')
    process = core.run(up=False)
    _, wrong = process.communicate(timeout=15)
    assert process.returncode == 78
    assert "platforms.elsewhere: unknown kind of platform 'pigeon'" in wrong
    assert wrong.count("\n") == 1


def test_systemd_is_notified_of_start_life_and_stop(core: GatewayProcessFixture, tmp_path: Path) -> None:
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
