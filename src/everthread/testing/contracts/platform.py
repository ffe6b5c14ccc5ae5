"""Contract of platforms. Subclass `PlatformContract` in a test module and define two fixtures:

    class TestMyPlatform(PlatformContract):
        @pytest.fixture
        def platform(self, server):
            return MyPlatform(url=server.url)

        @pytest.fixture
        def remote(self, server):
            return MyServerAsTheTestsSeeIt(server)

`platform` is a fresh adapter that is not running yet, with no updates pending upstream. `remote` controls the remote
side, the users and the network, as defined by `RemoteSide`: a server that stands in for the platform, in the test's
process or its own. Tests of a capability that the platform does not declare are skipped. To skip the tests of a fault
that the remote side can't inject, raise `NotImplementedError`. Run by the tests of platforms in tests/contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from everthread.domain.errors import PlatformError, PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.ports.platform import BUTTON_COMMAND_BYTES_MAX, Address, Button, Incoming, Outbound, Platform, Update
from everthread.testing import in_loop

PATIENCE_S = 10.0
QUIET_S = 0.3
CHAT, OTHER_CHAT = "7001", "7002"


class RemoteSide(Protocol):
    """The remote side. Each fault applies once, to the adapter's next call that sends."""

    async def say(self, chat: str, text: str) -> None:
        """Send a message to the agent as a user, in a direct chat."""
        ...

    async def press(self, chat: str, label: str) -> None:
        """Press the button with this label under the newest message that has one."""
        ...

    async def shown(self, chat: str) -> list[str]:
        """Messages of the agent in a chat, with edits applied."""
        ...

    async def busy(self, seconds: float) -> None:
        """Reply "retry after `seconds`"; show nothing."""
        ...

    async def lose(self) -> None:
        """Show the message and break the connection before the answer."""
        ...

    async def refuse(self) -> None:
        """Refuse the message permanently; show nothing."""
        ...

    async def stall(self) -> None:
        """Accept the call and do not answer for a long time."""
        ...

    async def leave(self) -> None:
        """Make the remote side unreachable from now on."""
        ...


class UpdateReceiver:
    """Receiver of the adapter's updates."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.failures = 0
        self._news = asyncio.Event()

    async def take(self, update: Incoming) -> None:
        if not isinstance(update, Update):
            return
        if self.failures:
            self.failures -= 1
            raise _NotStored("it could not be stored")
        # Yield, so that concurrent deliveries can interleave.
        await asyncio.sleep(0)
        self.updates.append(update)
        self._news.set()

    def texts(self, chat: str = CHAT) -> list[str]:
        """Texts without duplicates, in the order of first receipt."""
        latest_first = {u.update_id: u.text for u in reversed(self.updates) if u.chat == chat}
        return [*latest_first.values()][::-1]

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len({update.update_id for update in self.updates}) < count:
                self._news.clear()
                await self._news.wait()


class _NotStored(Exception):
    pass


class PlatformUnderTest:
    def __init__(self, platform: Platform, remote: RemoteSide) -> None:
        self.platform = platform
        self.remote = remote
        self.receiver = UpdateReceiver()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        task = asyncio.create_task(self.platform.run(self.receiver.take))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


def _platform_test(test: Callable[[Any, PlatformUnderTest], Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop and close its platform. Skip it if the remote side can't do what it needs."""

    async def run(self: object, platform: Platform, remote: RemoteSide) -> None:
        try:
            await test(self, PlatformUnderTest(platform, remote))
        except NotImplementedError as error:
            pytest.skip(str(error) or "the remote side can't do this")
        finally:
            await platform.aclose()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return in_loop(run)


def outbound(text: str, number: int = 0, chat: str = CHAT) -> Outbound:
    return Outbound(f"turn-{number}.0", Address(chat), text)


class PlatformContract:
    # Receiving --------------------------------------------------------------------------------------------------------

    @_platform_test
    async def test_messages_of_a_chat_arrive_in_order(self, there: PlatformUnderTest) -> None:

        async def say(*numbers: int) -> None:
            for number in numbers:
                await there.remote.say((CHAT, OTHER_CHAT)[number % 2], f"word {number}")

        # Some messages arrive together, some one by one.
        await say(0, 1, 2, 3)
        async with there.running():
            await there.receiver.wait_for(4)
            await say(4, 5)
            await there.receiver.wait_for(6)
        assert there.receiver.texts() == ["word 0", "word 2", "word 4"]
        assert there.receiver.texts(OTHER_CHAT) == ["word 1", "word 3", "word 5"]
        assert {update.platform for update in there.receiver.updates} == {there.platform.name}
        assert len({update.update_id for update in there.receiver.updates}) == 6

    @_platform_test
    async def test_messages_sent_while_the_adapter_was_stopped_arrive(self, there: PlatformUnderTest) -> None:
        await there.remote.say(CHAT, "anybody there?")
        async with there.running():
            await there.receiver.wait_for(1)
        assert there.receiver.texts() == ["anybody there?"]

    @_platform_test
    async def test_an_update_that_was_not_stored_arrives_again_under_its_id(self, there: PlatformUnderTest) -> None:
        there.receiver.failures = 1
        await there.remote.say(CHAT, "one")
        await there.remote.say(CHAT, "two")
        async with there.running() as first:
            await asyncio.wait({first}, timeout=PATIENCE_S)
            assert isinstance(first.exception(), _NotStored), "what `take` raises ends the run"
        async with there.running():
            await there.receiver.wait_for(2)
        assert there.receiver.texts() == ["one", "two"], "the first of a chat comes first, whatever became of it"

    @_platform_test
    async def test_an_acknowledged_update_does_not_arrive_again(self, there: PlatformUnderTest) -> None:
        async with there.running():
            await there.remote.say(CHAT, "one")
            await there.receiver.wait_for(1)
            # The adapter's next call upstream acknowledges the update.
            await asyncio.sleep(QUIET_S)
        taken = len(there.receiver.updates)
        async with there.running():
            await there.remote.say(CHAT, "two")
            await there.receiver.wait_for(2)
        assert [update.text for update in there.receiver.updates[taken:]] == ["two"]

    @_platform_test
    async def test_receiving_ends_when_it_is_cancelled(self, there: PlatformUnderTest) -> None:
        async with there.running() as task:
            await there.remote.say(CHAT, "one")
            await there.receiver.wait_for(1)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=2.0)
            assert done
            assert task.cancelled()

    @_platform_test
    async def test_an_unreachable_remote_side_is_unavailable(self, there: PlatformUnderTest) -> None:
        await there.remote.leave()
        async with there.running() as task:
            await asyncio.wait({task}, timeout=PATIENCE_S)
            assert task.done()
            assert isinstance(task.exception(), PlatformUnavailable)
        with pytest.raises(PlatformUnavailable):
            await there.platform.send(outbound("hello"))

    @_platform_test
    async def test_a_pressed_button_arrives_as_its_command(self, there: PlatformUnderTest) -> None:
        if not there.platform.capabilities.buttons:
            pytest.skip("there is nothing to press there")
        longest = "/approve ".ljust(BUTTON_COMMAND_BYTES_MAX, "x")
        async with there.running():
            await there.remote.say(CHAT, "do it")
            await there.receiver.wait_for(1)
            buttons = (Button("Allow", longest), Button("Deny", "/deny k7"))
            message_id = await there.platform.send(Outbound("turn-1.0", Address(CHAT), "May I?", buttons))
            await there.remote.press(CHAT, "Allow")
            await there.remote.press(CHAT, "Deny")
            await there.remote.press(CHAT, "Deny")
            await there.receiver.wait_for(4)
            assert there.receiver.texts() == ["do it", longest, "/deny k7", "/deny k7"], "each press is an update"
            said, *pressed = there.receiver.updates
            for press in pressed:
                assert (press.chat, press.chat_type, press.user) == (said.chat, said.chat_type, said.user)
            if there.platform.capabilities.edits:
                await there.platform.edit(Address(CHAT), message_id, "Denied.", (Button("Again", "/retry"),))
                await there.remote.press(CHAT, "Again")
                await there.receiver.wait_for(5)
                assert there.receiver.texts()[-1] == "/retry"

    # Sending ----------------------------------------------------------------------------------------------------------

    @_platform_test
    async def test_a_message_is_shown_in_its_chat(self, there: PlatformUnderTest) -> None:
        first = await there.platform.send(outbound("hello", 1))
        second = await there.platform.send(outbound("and you", 2, OTHER_CHAT))
        third = await there.platform.send(outbound("are you well?", 3))
        assert len({first, second, third}) == 3
        assert await there.remote.shown(CHAT) == ["hello", "are you well?"]
        assert await there.remote.shown(OTHER_CHAT) == ["and you"]

    @_platform_test
    async def test_a_message_sent_twice_under_one_id_is_shown_once(self, there: PlatformUnderTest) -> None:
        if not there.platform.capabilities.idempotent_send:
            pytest.skip("it does not promise that")
        first = await there.platform.send(outbound("hello"))
        assert await there.platform.send(outbound("hello")) == first
        await there.remote.lose()
        with pytest.raises((SendUncertain, PlatformUnavailable)):
            await there.platform.send(outbound("bye", 2))
        await there.platform.send(outbound("bye", 2))
        assert await there.remote.shown(CHAT) == ["hello", "bye"]

    @_platform_test
    async def test_the_longest_text_is_sent_and_a_longer_one_is_refused(self, there: PlatformUnderTest) -> None:
        room = there.platform.capabilities.text_chars_max
        await there.platform.send(outbound("x" * room))
        assert await there.remote.shown(CHAT) == ["x" * room]
        with pytest.raises(PlatformRefused):
            await there.platform.send(outbound("x" * (room + 1), 2))
        assert len(await there.remote.shown(CHAT)) == 1

    @_platform_test
    async def test_a_retry_delay_is_passed_on(self, there: PlatformUnderTest) -> None:
        await there.remote.busy(7.0)
        with pytest.raises(PlatformUnavailable) as failure:
            await there.platform.send(outbound("hello"))
        assert failure.value.retry_after == 7.0
        assert await there.remote.shown(CHAT) == []
        await there.platform.send(outbound("hello"))
        assert await there.remote.shown(CHAT) == ["hello"]

    @_platform_test
    async def test_a_send_without_an_answer_is_uncertain(self, there: PlatformUnderTest) -> None:
        await there.remote.lose()
        with pytest.raises(SendUncertain):
            await there.platform.send(outbound("hello"))
        assert await there.remote.shown(CHAT) == ["hello"]

    @_platform_test
    async def test_a_message_that_was_sent_without_an_answer_is_found(self, there: PlatformUnderTest) -> None:
        if (finder := there.platform.finder) is None:
            pytest.skip("what was sent can't be looked for there")
        await there.platform.send(outbound("hello"))
        mark, lost = finder.newest(Address(CHAT)), outbound("bye", 2)
        assert mark, "what was sent is known to be there"
        await there.remote.lose()
        with pytest.raises(SendUncertain):
            await there.platform.send(lost)
        await there.remote.say(CHAT, "are you there?")
        found = await finder.find(lost, mark)
        assert found is not None
        assert await finder.find(lost, mark, besides={found}) is None
        assert await finder.find(lost, mark, until=found) is None
        again = await there.platform.send(lost)
        assert await finder.find(lost, mark, until=again) == found, "asking changes nothing"
        assert await there.remote.shown(CHAT) == ["hello", "bye", "bye"]
        await finder.delete(Address(CHAT), again)
        await there.platform.edit(Address(CHAT), found, "good bye")
        assert await there.remote.shown(CHAT) == ["hello", "good bye"]

    @_platform_test
    async def test_a_message_that_was_not_sent_is_not_found(self, there: PlatformUnderTest) -> None:
        if (finder := there.platform.finder) is None:
            pytest.skip("what was sent can't be looked for there")
        first = await there.platform.send(outbound("hello"))
        mark, lost = finder.newest(Address(CHAT)), outbound("bye", 2)
        # Messages by users and in other chats must not be found.
        await there.remote.say(CHAT, "are you there?")
        await there.platform.send(outbound("bye", 3, OTHER_CHAT))
        await there.remote.say(OTHER_CHAT, "yes")
        assert await finder.find(lost, mark) is None
        await there.platform.send(outbound("something else", 4))
        assert await finder.find(lost, mark) is None, "of what was sent since, it is known under which id"
        # A restarted adapter is given the newest known message id.
        finder.know(Address(CHAT), first)
        assert finder.newest(Address(CHAT)) != mark

    @_platform_test
    async def test_a_message_that_is_refused_permanently_is_reported_as_refused(self, there: PlatformUnderTest) -> None:
        await there.remote.refuse()
        with pytest.raises(PlatformRefused):
            await there.platform.send(outbound("hello"))
        assert await there.remote.shown(CHAT) == []

    @_platform_test
    async def test_a_send_can_be_cancelled(self, there: PlatformUnderTest) -> None:
        await there.remote.stall()
        sending = asyncio.ensure_future(there.platform.send(outbound("hello")))
        await asyncio.sleep(0.1)
        assert not sending.done()
        sending.cancel()
        done, _ = await asyncio.wait({sending}, timeout=2.0)
        assert done
        assert sending.cancelled()
        await there.platform.send(outbound("still there", 2, OTHER_CHAT))
        assert await there.remote.shown(OTHER_CHAT) == ["still there"]

    @_platform_test
    async def test_a_message_can_be_edited(self, there: PlatformUnderTest) -> None:
        if not there.platform.capabilities.edits:
            pytest.skip("nothing can be edited there")
        message_id = await there.platform.send(outbound("hel"))
        for text in ("hello", "hello", "hello you"):
            await there.platform.edit(Address(CHAT), message_id, text)
        # A repeated edit without changes is not an error.
        await there.platform.edit(Address(CHAT), message_id, "hello you")
        assert await there.remote.shown(CHAT) == ["hello you"]
        with pytest.raises(PlatformError):
            await there.platform.edit(Address(CHAT), "no-such-message", "hello")

    @_platform_test
    async def test_buttons_and_typing_do_no_harm(self, there: PlatformUnderTest) -> None:
        if there.platform.capabilities.typing:
            await there.platform.show_typing(Address(CHAT))
        if there.platform.capabilities.buttons:
            button = Button("Another one", "/resume 2")
            await there.platform.send(Outbound("turn-1.0", Address(CHAT), "Which?", (button,)))
            assert await there.remote.shown(CHAT) == ["Which?"]

    @_platform_test
    async def test_closing_is_safe_at_any_time(self, there: PlatformUnderTest) -> None:
        await there.platform.aclose()
        await there.platform.send(outbound("hello"))
        await there.platform.aclose()
        await there.platform.aclose()
        assert await there.remote.shown(CHAT) == ["hello"]
