import asyncio
from pathlib import Path

from tests.runtime import CLI, AsyncDiary, Call, CoreFixture, until

from everthread.domain.errors import Rejected, Unavailable
from everthread.lifecycle import ForgetSession
from everthread.memory.delivery_results import Limits


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("can't even say it")


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_an_error_whose_text_can_not_be_read_is_retried_with_backoff(tmp_path: Path) -> None:
    diary = AsyncDiary()
    tries = 0

    async def fail(call: Call) -> None:
        nonlocal tries
        tries += 1
        raise UnprintableError if tries > 1 else Rejected("diary", "no")

    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "hello")
        await core.settled()
        diary.before = fail
        await core.turn(CLI, "again")
        await core.reported("memory:diary", "no")
        await core.memory.journal.retry("diary")
        await until(lambda: tries >= 3)
        await asyncio.sleep(0.1)
        assert tries < 50


async def test_a_delivery_error_after_a_forget_records_no_text(tmp_path: Path) -> None:
    diary = AsyncDiary()
    begun, go = asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> None:
        if call.hook == "sync_turn":
            begun.set()
            await go.wait()
            raise Unavailable("diary", f"can't keep {call.text}")

    diary.before = hold
    async with CoreFixture(tmp_path, diary, limits=Limits(attempt_s_max=5.0, backoff_s=0.01)) as core:
        session = (await core.turn(CLI, "the zebra in Ribe")).ref.session_id
        await begun.wait()
        await core.lifecycle.forget(ForgetSession(session), owner="me")
        go.set()
        await core.settled()
        assert b"zebra" not in stored(tmp_path)
