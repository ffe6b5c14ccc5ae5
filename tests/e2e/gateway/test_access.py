"""The owners, accounts and spending limits of guests, in a running gateway."""

from __future__ import annotations

from pathlib import Path

from tests.fake_platform import FakePlatform
from tests.gateway import gateway_fixture
from tests.runtime import until

from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.domain.pairing import PairedAccount
from everthread.domain.spend import Price
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def test_a_handoff_reaches_only_enabled_accounts_that_may_write(tmp_path: Path) -> None:
    platform, other = FakePlatform(), FakePlatform("other")
    links = {"anna": ("fake:42", "other:7")}
    async with ModelServer(lambda _: Say("Yes.")) as model:
        async with gateway_fixture(
            tmp_path, model, platform, others=(other,), gateway=GatewaySettings(links=links)
        ) as fixture:
            await fixture.hear("hello")
            other.say("hello", chat="chat-7", user="7")
            await until(lambda: other.texts("chat-7"))
            await fixture.rest()
        closed = PlatformAccount("fake", allow=("42",))
        for platforms, account, guests, is_offered in (
            ((), closed, (), False),
            ((other,), closed, (), False),
            ((other,), closed, (PairedAccount("other", "7", "bea", "Bea", 1.0),), True),
            ((other,), PlatformAccount("fake", allow=("42", "7")), (), True),
        ):
            async with gateway_fixture(
                tmp_path, model, platform, others=platforms, account=account, gateway=GatewaySettings(links=links)
            ) as fixture:
                for guest in guests:
                    await fixture.runtime.store.write(lambda uow, guest=guest: uow.access.add_guest(guest))
                (said,) = await fixture.hear("/handoff nowhere")
                assert ("Your platforms: other" in said) == is_offered, said
                (said,) = await fixture.hear("/handoff other")
                assert ("continues on other" in said or "already" in said) == is_offered, said
                for guest in guests:
                    await fixture.runtime.store.write(
                        lambda uow, guest=guest: uow.access.remove_guest(guest.platform, guest.user)
                    )


async def test_guests_have_a_lower_spending_limit_than_the_owner(tmp_path: Path) -> None:
    gateway = GatewaySettings(spend_per_day=0.0, links={"me": ("fake:bert",)})
    prices = {"stub/one": Price(1.0, 1.0)}
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway, prices=prices) as fixture,
    ):
        fixture.platform.say("hello")
        fixture.platform.say("hello", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7") == ["Hello."])
        await until(lambda: fixture.platform.texts() != [])
        assert "the limit of $0 in 24 hours would be exceeded" in fixture.platform.texts()[0]
        fixture.platform.say("/usage")
        await until(lambda: len(fixture.platform.texts()) == 2)
        assert "The limit is $0.00 in 24 hours" in fixture.platform.texts()[1]
