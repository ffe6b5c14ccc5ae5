"""The check of the gateway."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace
from tests.e2e.cli.commands.doctor.doctor_home import ME, failed, in_home

from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway.lock import GatewayLock, LockHolder
from everthread.domain.api_key import hash_token, make_token
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Reply, ReplyState, SessionKey
from everthread.domain.schedule import Schedule, ScheduleState
from everthread.store.api_keys import ApiKey


def _reply(state: ReplyState, at: float, chat: str = "7") -> Reply:
    key = SessionKey.parse(f"agent:main:post:dm:{chat}")
    return Reply(f"turn-{chat}-{state.value}", key, "01SESSION", ME, "words", state, at)


def test_undelivered_replies_are_reported_with_chat_and_time(home: Path) -> None:
    async def leave(runtime: Runtime) -> None:
        now = runtime.clock.now()
        replies = (_reply(ReplyState.AMBIGUOUS, now - 60), _reply(ReplyState.FAILED, now - 2 * 86_400, "8"))
        for reply in replies:
            await runtime.store.write(lambda uow, reply=reply: uow.outbox.put_reply(reply))

    in_home(home, leave)
    says, fix = failed(home, "--offline")["gateway"]
    assert "a reply to post chat 7 of 20" in says
    assert "may not have arrived" in says
    assert "more" not in says, "replies older than a day must not be reported"
    assert "everthread sessions show 01SESSION" in fix


def test_queued_work_without_a_gateway_is_reported(home: Path) -> None:
    async def leave(runtime: Runtime) -> None:
        await runtime.lifecycle.accept(Inbound(SessionKey.parse("agent:main:post:dm:7"), "post:anna", "hello?"))
        await runtime.store.write(lambda uow: uow.outbox.put_reply(_reply(ReplyState.READY, runtime.clock.now())))

    in_home(home, leave)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "1 conversation and 1 reply queued, but no gateway is running"
    assert fix == "everthread gateway start"


def test_http_open_to_others_without_a_token_is_reported(home: Path) -> None:
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


def test_the_automatic_token_does_not_protect_an_open_address(home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[gateway.http]\nhost = "0.0.0.0"\n')

    async def make(runtime: Runtime) -> None:
        token = ApiKey("hash", ME, "local", runtime.clock.now(), automatic=True)
        await runtime.store.write(lambda uow: uow.api_keys.add(token))

    in_home(home, make)
    says, _ = failed(home, "--offline")["gateway"]
    assert "you have created no API token" in says


def test_clients_that_send_no_token_are_reported_until_one_does(home: Path) -> None:
    async def talk(runtime: Runtime) -> None:
        key = SessionKey.parse("agent:main:http:dm:desk")
        await runtime.lifecycle.cross(key, New(), owner=ME)

    in_home(home, talk)
    says, fix = failed(home, "--offline")["http"]
    assert "clients that send none stop working" in says
    assert "everthread gateway start" in fix
    assert "everthread tokens show" in fix

    token = make_token("x" * 43)

    async def make(runtime: Runtime) -> None:
        key = ApiKey(hash_token(token), ME, "local", runtime.clock.now(), automatic=True)
        await runtime.store.write(lambda uow: uow.api_keys.add(key))

    in_home(home, make)
    says, fix = failed(home, "--offline")["http"]
    assert says == "the automatic API token exists, but its text is not in this home; nobody can use it"
    assert "everthread tokens new NAME" in fix
    assert "everthread tokens revoke local" in fix
    (home / "local.token").write_text(token)
    (home / "local.token").chmod(0o600)
    says, fix = failed(home, "--offline")["http"]
    assert "none was used yet" in says
    assert "everthread tokens show" in fix
    assert "gateway start" not in fix

    async def use(runtime: Runtime) -> None:
        await runtime.store.write(lambda uow: uow.api_keys.record_use(hash_token(token), runtime.clock.now()))

    in_home(home, use)
    assert failed(home, "--offline") == {}


def test_a_locked_interface_is_reported(home: Path) -> None:
    async def make_and_revoke(runtime: Runtime) -> None:
        token = ApiKey("hash", ME, "phone", runtime.clock.now())
        await runtime.store.write(lambda uow: uow.api_keys.add(token))
        await runtime.store.write(lambda uow: uow.api_keys.remove(ME, "phone"))

    in_home(home, make_and_revoke)
    says, fix = failed(home, "--offline")["http"]
    assert "every HTTP request is refused" in says
    assert fix == "everthread tokens new NAME"
    with (home / "config.toml").open("a") as config:
        config.write('[gateway.http]\nauth = "none"\nsocket = "http.sock"\n')
    assert failed(home, "--offline") == {}


def test_a_silent_gateway_and_a_platform_that_is_down_are_reported(home: Path) -> None:
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


def test_webhooks_that_an_old_configuration_loses_are_reported(home: Path) -> None:
    config = home / "config.toml"
    before = config.read_text()
    config.write_text(before + '[gateway.webhooks.ci]\nsecret_env = "CI_SECRET"\n')
    (home / ".env").write_text("CI_SECRET=hidden words\n")
    (home / ".env").chmod(0o600)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "the webhook ci has no scheme and is disabled"
    assert fix.startswith('add scheme = "everthread" or scheme = "github" to [gateway.webhooks.ci] in ')
    hooks = "".join(f'{name} = {{ secret_env = "{name}_SECRET", scheme = "github" }}\n' for name in ("a", "b"))
    config.write_text(f"{before}[gateway.webhooks]\n{hooks}")
    (home / ".env").write_text("a_SECRET=hidden words\nb_SECRET=hidden words\n")
    (home / ".env").chmod(0o600)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "the webhooks a and b have the same secret and are disabled"
    assert fix.startswith("give b a secret of its own in ")


def test_people_who_have_reached_a_quota_are_reported(home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write("[gateway.quotas]\nsessions = 1\n")
    key = SessionKey.parse("agent:main:http:dm:desk::anna")

    async def write(runtime: Runtime) -> None:
        await runtime.lifecycle.cross(key, New(), owner="anna")

    in_home(home, write)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "anna has reached gateway.quotas.sessions (1 of 1) and is refused more"
    assert fix.startswith("raise gateway.quotas.sessions")


def test_people_with_as_many_scheduled_tasks_as_allowed_are_reported(home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write("[gateway.quotas]\nschedules = 1\n")
    task = Schedule("x1", "anna", "news", "0 7 * * *", "UTC", 0.0, "Summarise the news.", next_at=1e12)

    async def write(runtime: Runtime) -> None:
        await runtime.lifecycle.cross(SessionKey.parse("agent:main:http:dm:desk::anna"), New(), owner="anna")
        over = replace(task, id="x2", name="old", state=ScheduleState.OVER, next_at=None)
        await runtime.store.write(lambda uow: uow.schedules.add(over))

    async def add(runtime: Runtime) -> None:
        await runtime.store.write(lambda uow: uow.schedules.add(task))

    in_home(home, write)
    assert "gateway" not in failed(home, "--offline")
    in_home(home, add)
    says, fix = failed(home, "--offline")["gateway"]
    assert says == "anna has reached gateway.quotas.schedules (1 of 1) and is refused more"
    assert fix.endswith("remove tasks: everthread cron remove NAME --owner OWNER")
