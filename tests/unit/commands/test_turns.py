"""`/compress` and `/uncompress`, and compression in `/status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI

from everthread.commands.context import CommandResult
from everthread.config.schema import CompressionSettings
from everthread.domain.errors import ModelUnavailable
from everthread.domain.model import Cause
from everthread.ports.model import Traits, Usage

SUMMARY = "## Goal\n- sail around the world"
LONG = [f"turn {number}: " + "of boats and masts and sails " * 8 for number in range(1, 7)]


class CompressingCommandFixture(CommandFixture):
    def __init__(self, folder: Path, **more: Any) -> None:
        more.setdefault("summariser", FakeModel([SUMMARY]))
        super().__init__(
            folder, FakeModel(["fine"], usage=Usage(1_000, 1)), compression=CompressionSettings(tail_tokens=200), **more
        )

    async def compress(self, focus: str = "") -> CommandResult:
        return await self.order(f"/compress {focus}".strip(), choices=lambda model: self.choices)


async def test_compress_reports_its_effect_and_that_nothing_is_lost(tmp_path: Path) -> None:
    async with CompressingCommandFixture(tmp_path) as console:
        for text in LONG:
            await console.ask(text)
        before = (await console.at(CLI)).session_id
        said = await console.compress("the masts")
        assert said.ok, said.text
        assert said.text.startswith("Compressed: ")
        assert "turns into a summary (about 1,001 tokens before, " in said.text
        assert said.text.endswith("The full text is still stored: /search finds it, /uncompress restores it.")
        assert (await console.at(CLI)).session_id != before
        assert console.summariser is not None
        assert "the masts" in console.summariser.requests[0].tail[0].content
        assert "turn 1" in (await console.order('/search "turn 1"')).text


async def test_uncompress_branches_from_the_uncompressed_session(tmp_path: Path) -> None:
    async with CompressingCommandFixture(tmp_path) as console:
        for text in LONG:
            await console.ask(text)
        whole = (await console.at(CLI)).session_id
        await console.compress()
        await console.ask("said since")
        shorter = (await console.at(CLI)).session_id
        said = await console.order("/uncompress Once more")
        assert said.ok, said.text
        child = await console.session((await console.at(CLI)).session_id)
        assert (child.title, child.parent_id, child.cause) == ("Once more", whole, Cause.BRANCH)
        assert "the full text" in said.text
        assert f"/resume {shorter}" in said.text
        await console.ask("and now?")
        assert SUMMARY not in console.model.sent()
        assert all(text in console.model.sent() for text in LONG)
        assert await console.shown(child.id) == [*LONG, "and now?"]
        assert await console.shown(whole) == LONG, "the session is unchanged"
        assert (await console.session(whole)).ended_at is not None


async def test_uncompress_finds_the_original_of_a_branch_of_a_compressed_session(tmp_path: Path) -> None:
    async with CompressingCommandFixture(tmp_path) as console:
        for text in LONG:
            await console.ask(text)
        await console.compress()
        await console.order("/branch")
        assert (await console.order("/uncompress")).ok
        assert await console.shown((await console.at(CLI)).session_id) == LONG


async def test_uncompress_is_refused_without_a_compression(tmp_path: Path) -> None:
    async with CompressingCommandFixture(tmp_path) as console:
        await console.refuses("/uncompress", "never compressed", "/branch")
        await console.ask("hello")
        await console.order("/branch")
        await console.refuses("/uncompress", "never compressed")


async def test_compress_of_an_empty_session_names_the_next_step(tmp_path: Path) -> None:
    async with CompressingCommandFixture(tmp_path) as console:
        said = await console.compress()
        assert (said.ok, "Send a message" in said.text) == (False, True)
        await console.ask("hello")
        said = await console.compress()
        assert said.text == (
            "Nothing was compressed: there are no older turns to summarise; the last turns are always kept."
        )
        assert "2,000 characters" in (await console.compress("x" * 2_001)).text


async def test_compress_with_an_unsuitable_model_names_the_setting(tmp_path: Path) -> None:
    small = FakeModel([SUMMARY], given_traits=Traits(context_tokens=2_048))
    async with CompressingCommandFixture(tmp_path, summariser=small) as console:
        for text in LONG:
            await console.ask(text)
        said = await console.compress()
        assert not said.ok
        assert "fake/summariser has a context of 2,048 tokens" in said.text
        assert "auxiliary_model" in said.text


async def test_status_shows_the_pause_after_a_failed_compression(tmp_path: Path) -> None:
    broken = FakeModel([ModelUnavailable("it is down", retry_after_s=900)])
    async with CompressingCommandFixture(tmp_path, summariser=broken) as console:
        for text in LONG:
            await console.ask(text)
        said = await console.compress()
        assert (said.ok, said.text) == (False, "Nothing was compressed: it is down.")
        assert len(await console.turns((await console.at(CLI)).session_id)) == len(LONG)
        console.model.usage = Usage(90_000, 1)
        await console.ask("the last straw")
        while console.compressor.busy:
            await console.settled()
        assert (
            "Compression is paused: it is down; the next attempt is in 5 minutes at the earliest"
            in (await console.order("/status")).text
        )
