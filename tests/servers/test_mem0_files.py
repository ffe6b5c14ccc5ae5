"""Test the Mem0 library for data loss: files damaged by a kill, swallowed errors, and texts left after a forget."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until
from tests.servers.mem0_library import Mem0Library, child_of, mem0

from everthread.adapters.memory.mem0 import local_client as library
from everthread.adapters.memory.mem0.provider import Mem0
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.testing.backend_model.extraction import reply_to
from everthread.testing.backend_model.server import ChatRequest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Mem0Library]:
    with mem0(tmp_path / "mem0") as core:
        yield core


@asynccontextmanager
async def ready(core: Mem0Library, **settings: Any) -> AsyncIterator[Mem0]:
    provider = Mem0()
    await provider.initialize(**{**core.settings(), **settings})
    assert await provider.health() == "ok"
    try:
        yield provider
    finally:
        await provider.shutdown()


def ref(session: str = "s1", owner: str = "ann") -> SessionRef:
    return SessionRef(session, 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, owner)


async def say(provider: Mem0, turn: int, text: str, session: str = "s1", attempt: int = 1) -> None:
    delivery = Delivery(f"{session}:{turn}:mem0:0", turn, attempt)
    await provider.sync_turn(text, "I see.", ref=ref(session), delivery=delivery, turn=turn, at=86_400.0)


def turns(core: Mem0Library, session: str = "s1") -> list[str]:
    return [one.text for one in core.stored_entries() if (one.session_id, one.kind) == (session, "turn")]


def everything(core: Mem0Library) -> bytes:
    return b"".join(path.read_bytes() for path in core.folder.rglob("*") if path.is_file())


async def test_a_process_killed_at_any_moment_loses_and_duplicates_nothing(core: Mem0Library) -> None:
    dice, kills = random.Random(7), 0
    async with ready(core, infer=False) as provider:
        for turn in range(1, 13):
            delivering = asyncio.ensure_future(say(provider, turn, f"word{turn}"))
            if turn % 3 == 0:
                await asyncio.sleep(dice.uniform(0, 0.06))
                os.kill(child_of(provider), signal.SIGKILL)
                kills += 1
            try:
                await delivering
            except Unavailable:
                await say(provider, turn, f"word{turn}", attempt=2)
        # Acknowledged entries survive another kill.
        os.kill(child_of(provider), signal.SIGKILL)
    assert kills == 4
    assert turns(core) == [f"word{turn}\nI see." for turn in range(1, 13)]


async def test_files_half_replaced_at_a_kill_are_completed_or_discarded(core: Mem0Library) -> None:
    async with ready(core, infer=False) as provider:
        await say(provider, 1, "apple")
        before = {name: (core.folder / "ann" / name).read_bytes() for name in ("memories.json", "memories.faiss")}
        await say(provider, 2, "birch")
        after = {name: (core.folder / "ann" / name).read_bytes() for name in ("memories.json", "memories.faiss")}
    files = {name: core.folder / "ann" / name for name in ("memories.json", "memories.faiss")}
    words, vectors = files.values()
    new_words, new_vectors = (path.with_name(f"{path.name}.new") for path in files.values())
    # Killed between the two replacements: the texts are new, the vectors are pending.
    words.write_bytes(after["memories.json"])
    vectors.write_bytes(before["memories.faiss"])
    new_vectors.write_bytes(after["memories.faiss"])
    async with ready(core, infer=False) as provider:
        assert len(await provider.prefetch("birch", ref=ref(), limit=5)) == 1
    # Killed before both: the incomplete new file is discarded.
    words.write_bytes(before["memories.json"])
    vectors.write_bytes(before["memories.faiss"])
    new_words.write_bytes(after["memories.json"][:50])
    new_vectors.write_bytes(b"")
    async with ready(core, infer=False) as provider:
        assert turns(core) == ["apple\nI see."]
        await say(provider, 2, "birch", attempt=2)
    assert turns(core) == ["apple\nI see.", "birch\nI see."]


async def test_unreadable_files_are_reported_and_not_overwritten(core: Mem0Library) -> None:
    async with ready(core) as provider:
        await say(provider, 1, "I keep bees")
    words = core.folder / "ann" / "memories.json"
    words.write_text("{")
    async with ready(core) as provider:
        with pytest.raises(Unavailable, match="can't be read"):
            await say(provider, 2, "I sell honey")
    assert words.read_text() == "{"


async def test_an_embedder_of_another_dimension_is_reported(core: Mem0Library) -> None:
    async with ready(core) as provider:
        await say(provider, 1, "I keep bees")
        core.model._dimensions = 128  # noqa: SLF001
        with pytest.raises(Unavailable, match="384 dimensions, and those of the embedder 128"):
            await say(provider, 2, "I sell honey")


async def test_two_processes_on_one_home_do_not_overwrite_each_other(core: Mem0Library) -> None:
    """Each process reads the files at a different time, and writes whole files."""
    async with ready(core, infer=False) as one, ready(core, infer=False) as other:
        await say(one, 1, "apple")
        await say(other, 2, "birch")
        await say(one, 3, "cedar")
        # Both write the same entry at once, as after a change of the lease holder.
        await asyncio.gather(say(one, 4, "damson"), say(other, 4, "damson"))
        assert [word.partition("\n")[0] for word in turns(core)] == ["apple", "birch", "cedar", "damson"]
        assert {item.turn for item in await other.prefetch("cedar", ref=ref(), limit=1)} == {3}
        await other.forget(ForgetScope.OWNER, ref=ref(), delivery=Delivery("k", 5))
        assert await one.prefetch("cedar", ref=ref(), limit=1) == ()
        await say(one, 5, "elder")
    assert turns(core) == ["elder\nI see."]


async def test_a_fact_that_could_not_be_embedded_is_retried(core: Mem0Library) -> None:
    """The library would only log a warning and report success."""

    def answer(asked: ChatRequest) -> str:
        # From here on, the turn is stored, and its extracted facts are to be embedded.
        core.model.fail_next(10)
        return reply_to(asked.texts, asked.response_format)

    core.model._script = answer  # noqa: SLF001
    async with ready(core) as provider:
        with pytest.raises(Unavailable, match="500"):
            await say(provider, 1, "I keep bees")
        assert turns(core) == []
        core.model.heal()
        core.model._script = lambda asked: reply_to(asked.texts, asked.response_format)  # noqa: SLF001
        await say(provider, 1, "I keep bees", attempt=2)
    assert turns(core) == ["I keep bees"]


async def test_an_unreadable_model_answer_is_not_treated_as_empty(core: Mem0Library) -> None:
    core.model._script = lambda asked: "I would rather not."  # noqa: SLF001
    async with ready(core) as provider:
        for attempt in (1, 2):
            with pytest.raises(Unavailable, match="can't be read"):
                await say(provider, 1, "I keep bees", attempt=attempt)
        with pytest.raises(Rejected, match="can't be read"):
            await say(provider, 1, "I keep bees", attempt=3)
        core.model._script = lambda asked: '{"memory": []}'  # noqa: SLF001
        await say(provider, 1, "hello")
    assert turns(core) == []


async def test_a_hanging_process_is_killed_and_replaced(core: Mem0Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "HUNG_S_MAX", 0.3)
    async with ready(core) as provider:
        stopped = child_of(provider)
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable, match="ended during"):
                await say(provider, 1, "I keep bees")
            monkeypatch.undo()
            await say(provider, 2, "I sell honey")
            await say(provider, 1, "I keep bees", attempt=2)
        finally:
            try:
                os.kill(stopped, signal.SIGCONT)
            except ProcessLookupError:
                stopped = 0
        assert stopped == 0
    assert sorted(turns(core)) == ["I keep bees", "I sell honey"]


async def test_nothing_waits_for_a_hanging_model_and_cancelled_entries_are_stored_once(core: Mem0Library) -> None:
    async with ready(core) as provider:
        core.model.hang()
        for attempt in range(1, 4):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await say(provider, 1, "I keep bees", attempt=attempt)
        assert core.model.asked["/v1/embeddings"] <= 3
        core.model.heal()
        await say(provider, 1, "I keep bees", attempt=4)
        assert turns(core) == ["I keep bees"]
        # A late request whose client has disconnected restores nothing that was forgotten meanwhile.
        core.model.hang()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await say(provider, 2, "I sell honey")
        forgetting = asyncio.ensure_future(provider.forget(ForgetScope.SESSION, ref=ref(), delivery=Delivery("k", 3)))
        await asyncio.sleep(0.3)
        core.model.heal()
        await forgetting
        # Wait long enough for the late request.
        await say(provider, 1, "I paint hives", session="s2")
        await asyncio.sleep(0.5)
        assert {one.session_id for one in core.stored_entries()} == {"s2"}


async def test_no_file_contains_forgotten_text(core: Mem0Library) -> None:
    async with ready(core) as provider:
        await say(provider, 1, "I planted larkspur", session="gone")
        await say(provider, 1, "I planted foxglove and nightshade", session="stays")
        about = {"note_id": "n1", "version": 1}
        await provider.on_memory_write("add", "user", "larkspur!", about, ref=ref("gone"), delivery=Delivery("k", 2))
        assert everything(core).count(b"larkspur") > 2
        await provider.forget(ForgetScope.SESSION, ref=ref("gone"), delivery=Delivery("k", 3))
        assert b"larkspur" not in everything(core)
        await provider.forget(ForgetScope.FACT, ref=ref("stays"), delivery=Delivery("k", 4), text="nightshade")
        assert b"nightshade" not in everything(core)
        assert turns(core, "stays") == ["I planted foxglove and [forgotten]"]
        await provider.forget(ForgetScope.OWNER, ref=ref("any"), delivery=Delivery("k", 5))
        assert b"foxglove" not in everything(core)


async def test_the_same_text_in_two_sessions_is_stored_in_both(core: Mem0Library) -> None:
    async with ready(core) as provider:
        for session in ("s:1/x", "s2"):
            await say(provider, 1, "I keep bees", session=session)
        found = await provider.prefetch("bees", ref=ref("s3"), limit=5)
        assert {(item.session_id, item.turn, item.at) for item in found} == {
            ("s:1/x", 1, 86_400.0),
            ("s2", 1, 86_400.0),
        }
        assert await provider.prefetch("  ", ref=ref(), limit=5) == ()


async def test_files_are_private_and_nothing_is_sent_to_third_parties(core: Mem0Library) -> None:
    async with ready(core) as provider:
        await say(provider, 1, "I keep bees")
    assert {oct(path.stat().st_mode & 0o077) for path in core.folder.rglob("*")} == {"0o0"}
    assert b"k-1234" not in everything(core)
    # The library can open our files as its own.
    code = (
        "import json, os, sys\n"
        "os.environ['MEM0_TELEMETRY'], os.environ['MEM0_DIR'] = 'False', sys.argv[2]\n"
        "from mem0 import Memory\n"
        "end = {'provider': 'openai', 'config': {'model': 'stub', 'openai_base_url': sys.argv[1], 'api_key': 'k'}}\n"
        "files = {'path': sys.argv[2] + '/ann', 'collection_name': 'memories', 'distance_strategy': 'cosine',\n"
        "         'embedding_model_dims': 384}\n"
        "store = {'provider': 'faiss', 'config': files}\n"
        "memory = Memory.from_config({'llm': end, 'embedder': end, 'vector_store': store,\n"
        "                             'history_db_path': sys.argv[2] + '/ann/history.db'})\n"
        "found = memory.search('bees', filters={'user_id': 'ann', 'run_id': 's1'})['results']\n"
        "print(json.dumps([(one['memory'], one['metadata']['turn']) for one in found]))\n"
    )
    process = await asyncio.create_subprocess_exec(
        core.python, "-c", code, core.model.base_url, str(core.folder), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert json.loads(said) == [["I keep bees", 1]]


async def test_a_python_without_the_library_is_reported_with_a_fix(core: Mem0Library, tmp_path: Path) -> None:
    provider = Mem0()
    for python, what in (
        (sys.executable, r"pip install 'everthread\[mem0\]'"),
        (str(tmp_path / "none"), "check `python`"),
    ):
        with pytest.raises(Unavailable, match=what):
            await provider.initialize(**{**core.settings(), "python": python})
    await provider.shutdown()


async def test_the_process_ends_with_its_parent(core: Mem0Library) -> None:
    async with ready(core) as provider:
        child = child_of(provider)
    await until(lambda: not Path(f"/proc/{child}").exists())


async def test_the_nearest_entries_of_one_session_are_found_among_many_others(core: Mem0Library) -> None:
    """The model is shown the known facts of the session, so that it extracts no fact twice."""
    async with ready(core) as provider:
        await say(provider, 1, "bees and a great many other things besides", session="s1")
        text = "\n".join(f"bees {n}" for n in range(60))
        await say(provider, 1, text, session="s2")
        seen: list[str] = []

        def answer(asked: ChatRequest) -> str:
            seen.append(asked.texts[-1])
            return '{"memory": []}'

        core.model._script = answer  # noqa: SLF001
        await say(provider, 2, "bees", session="s1")
    # Once as an earlier message, and once as a known fact.
    assert seen[0].count("a great many other things") == 2
