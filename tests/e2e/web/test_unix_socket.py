"""The HTTP interface on a Unix socket."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from tests.gateway import gateway_fixture
from tests.http_gateway import http_gateway

from everthread.config.schema import GatewaySettings, HttpSettings
from everthread.domain.errors import BadConfig
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.unix_socket import UnixSocket

MODEL = lambda _: Say("Hello.")  # noqa: E731


async def test_the_interface_listens_on_a_socket_for_the_user_only(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    http = HttpSettings(socket=path)
    async with ModelServer(MODEL) as model, http_gateway(tmp_path / "home", model, http=http) as fixture:
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert fixture.web.port is None
        assert (await fixture.ask("GET", "/health", token="")).status == 200
        assert (await fixture.ask("GET", "/api/sessions", token="")).status == 401
        assert (await fixture.say("hello", X_Session_Key="desk")).text == "Hello."
    assert "http.sock" not in os.listdir(tmp_path)


async def test_without_authentication_only_the_socket_admits_its_user(tmp_path: Path) -> None:
    http = HttpSettings(socket=tmp_path / "http.sock", auth="none")
    async with ModelServer(MODEL) as model, http_gateway(tmp_path / "home", model, http=http) as fixture:
        assert not fixture.runtime.settings.local_token_path.exists()
        answer = await fixture.say("hello", "none", X_Session_Key="desk")
        session = await fixture.runtime.store.read(lambda uow: uow.sessions.get(answer.headers["X-Session-Id"]))
        assert session is not None
        assert session.owner == "me"
        anna = await fixture.token("anna")
        assert (await fixture.ask("GET", "/api/sessions", token=anna)).json["data"] == [], "a token is still checked"
        assert (await fixture.ask("GET", "/api/sessions", token="et_" + "x" * 43)).status == 401


async def test_authentication_cannot_be_switched_off_on_a_port(tmp_path: Path) -> None:
    gateway = GatewaySettings(http=HttpSettings(port=0, auth="none"))
    async with ModelServer(MODEL) as model, gateway_fixture(tmp_path, model, gateway=gateway) as fixture:
        with pytest.raises(BadConfig, match=r"gateway\.http\.socket"):
            await fixture.runtime.web(fixture.gateway).start()


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    bound = UnixSocket(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    bound.listener.close()
    bound.remove()
    assert not path.exists()


def test_the_socket_of_a_living_program_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    first = UnixSocket(path)
    with pytest.raises(BadConfig, match="another program listens"):
        UnixSocket(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.listener.close()


def test_a_socket_whose_queue_is_full_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(BadConfig, match="another program listens"):
            UnixSocket(path)
        for client in clients:
            client.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to a socket"])
def test_nothing_but_a_socket_is_removed(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "http.sock", tmp_path / "other"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "link to a socket":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(other))
        path.symlink_to(other)
    with pytest.raises(BadConfig, match="no socket"):
        UnixSocket(path)
    assert os.path.lexists(path)


def test_a_socket_that_another_program_put_there_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    first = UnixSocket(path)
    path.unlink()
    second = UnixSocket(path)
    first.remove()
    assert path.exists()
    second.remove()
    assert not path.exists()
    first.remove()
    for each in (first, second):
        each.listener.close()


def test_two_gateways_that_start_at_once_do_not_take_each_others_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    bound: list[UnixSocket] = []
    refused: list[BadConfig] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        try:
            bound.append(UnixSocket(path))
        except BadConfig as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(bound), len(refused)) == (1, 3)
    bound[0].listener.close()
    bound[0].remove()


def test_at_no_time_can_another_user_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is right at the moment of creation, under the widest umask."""
    path, seen = tmp_path / "http.sock", list[int]()
    listen = socket.socket.listen

    def look(self: socket.socket, *backlog: int) -> None:
        seen.append(stat.S_IMODE(os.lstat(path).st_mode))
        listen(self, *backlog)

    monkeypatch.setattr(socket.socket, "listen", look)
    before = os.umask(0)
    try:
        bound = UnixSocket(path)
    finally:
        os.umask(before)
    assert seen == [0o600]
    bound.listener.close()
    bound.remove()


def test_an_unusable_path_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        UnixSocket(tmp_path / "missing" / "http.sock")
    with pytest.raises(BadConfig, match="too long"):
        UnixSocket(tmp_path / ("x" * 150))
