"""Test long conversations with the real local model.

The model is too weak to summarise or review well. The tests check that it is called, that its output is validated, and
that no data is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture
from tests.runtime import CLI, ME, TELEGRAM
from tests.servers.test_smollm2 import folder, local_model

from everthread.adapters.models.local.client import LocalModel
from everthread.agent.compression.policy import EXTRACT_NAME, READS_TOKENS_MIN, ContextFill
from everthread.agent.compression.summarizer import INSTRUCTION, SECTIONS
from everthread.agent.events import Compressed
from everthread.agent.model_call import ModelChoice
from everthread.agent.prompt import decode_prompt
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, ReviewSettings, Settings
from everthread.domain.errors import NotCompressed
from everthread.domain.model import Inbound, Message, NoteTarget
from everthread.ports.model import Answer, Delta, Prompt, Request, Traits

__all__ = ["folder"]

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

BESIDES = (
    " The sea was calm and the wind came from the west, so we had the time to look after the ropes and the paint." * 4
)
SAID = [
    f"My boat is called Bruno and lies at quay 12.{BESIDES}",
    f"The mast is nine metres high.{BESIDES}",
    f"Ann sails with me on Fridays.{BESIDES}",
    f"The key is under the blue barrel.{BESIDES}",
]


class Trusted:
    """The local model, treated as a large one: it gets the requests that small models are spared."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.requests: list[Request] = []

    def traits(self, model: str) -> Traits:
        return Traits(tools=True, context_tokens=READS_TOKENS_MIN)

    def head(self, prompt: Prompt) -> bytes:
        return self._model.head(prompt)

    def encode(self, messages: Sequence[Message]) -> bytes:
        return self._model.encode(messages)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        self.requests.append(request)
        async for piece in self._model.stream(request):
            yield piece

    async def aclose(self) -> None: ...

    def asked(self, words: str) -> list[Request]:
        return [request for request in self.requests if any(words in message.content for message in request.tail)]


async def test_a_compression_and_a_review_complete_without_data_loss(folder: Path, tmp_path: Path) -> None:
    async with local_model(folder) as local:
        client = Trusted(local)
        choice = ModelChoice("local/smollm2", "smollm2", client)
        async with AgentFixture(
            tmp_path,
            None,
            compression=CompressionSettings(tail_tokens=200),
            review=ReviewSettings(every_turns=len(SAID), iterations=2),
            turn_limits=TurnLimits(output_tokens=12),
            stop_s_max=120.0,
        ) as core:
            core.choices = [choice]
            for text in SAID:
                assert (await core.ask(text)).text
            parent = await core.at(CLI)
            async with asyncio.timeout(120):
                while core.reviewer.busy:  # noqa: ASYNC110 - nobody else needs to be told
                    await asyncio.sleep(0.1)
            await _reviewed(core, client, parent.session_id)

            full = ContextFill(1_000, 3_000, 20_000, context_tokens=READS_TOKENS_MIN, too_long=True)
            core.compressor.consider(parent, full, choice, core.heard.append, lasting=False)
            assert (await core.ask("Where is the key?")).text
            [compressed] = [event for event in core.heard if isinstance(event, Compressed)]
            assert compressed.turns >= len(SAID) - 1
            assert len(client.asked(INSTRUCTION)) == 1, "the model was asked for a summary"
            await _nothing_is_lost(core, compressed, parent.session_id)


async def _reviewed(core: AgentFixture, client: Trusted, session_id: str) -> None:
    """Check that the review sent the conversation's own prefix, ended, and left no trace in the transcript."""
    [row] = await core.store.read(lambda uow: uow.reviews.of_session(session_id))
    assert (row.window.from_turn, row.window.to_turn, row.state.value) == (1, len(SAID), "done")
    reviews, last = client.asked("[A review."), client.requests[len(SAID) - 1]
    assert reviews
    for request in reviews:
        assert request.head == last.head
        assert request.history.startswith(last.history)
    assert [turn.user_text for turn in await core.turns(session_id)] == SAID


async def _nothing_is_lost(core: AgentFixture, compressed: Compressed, parent_id: str) -> None:
    here = await core.at(CLI)
    assert here == compressed.ref
    assert (await core.session(here.session_id)).parent_id == parent_id
    assert [turn.user_text for turn in await core.turns(parent_id)] == SAID, "the old transcript is complete"
    prefix = await core.store.read(lambda uow: uow.turns.prefix(here.session_id))
    assert prefix is not None
    system = decode_prompt(prefix.content).prompt.system
    if compressed.instead_because:
        assert EXTRACT_NAME in system
        assert all(text[:25] in system for text in SAID[: compressed.turns])
    else:
        assert all(f"## {name}" in system for name in SECTIONS)
    await core.store.index()
    for word, text in zip(("Bruno", "mast", "Fridays", "barrel"), SAID, strict=True):
        hits = await core.store.read(lambda uow, word=word: uow.search.search(ME, word, limit=9))
        assert text in [hit.content for hit in hits]


async def test_the_default_setup_answers_reports_that_it_cannot_summarise_and_skips_reviews(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "local").symlink_to(folder)
    settings = Settings(
        tmp_path,
        model="local/smollm2",
        providers={"local": ProviderSettings("local", "")},
        review=ReviewSettings(every_turns=1),
    )
    async with Runtime(settings) as runtime:
        await runtime.ready()
        await runtime.lifecycle.accept(Inbound(TELEGRAM, ME, SAID[0]))
        ended = await runtime.agent.answer(TELEGRAM, TurnOptions(runtime.choices()))
        assert ended is not None
        assert ended.text, ended.problem
        with pytest.raises(
            NotCompressed, match="local/smollm2 has a context of 2,048 tokens, but summaries need 16,000"
        ):
            await runtime.agent.compress(TELEGRAM, runtime.choices()[0], owner=ME)
        session_id = ended.committed.ref.session_id
        async with asyncio.timeout(30):
            while (await _states(runtime, session_id)) != ["done"]:  # noqa: ASYNC110 - nobody else needs to be told
                await asyncio.sleep(0.05)
        assert await runtime.store.read(lambda uow: uow.notes.current(ME, NoteTarget.USER)) == ()
        view = await runtime.store.read(lambda uow: uow.turns.view(uow.sessions.get(session_id)))  # type: ignore[arg-type]
        assert [turn.user_text for turn in view.turns] == [SAID[0]]


async def _states(runtime: Runtime, session_id: str) -> list[str]:
    rows = await runtime.store.read(lambda uow: uow.reviews.of_session(session_id))
    return [row.state.value for row in rows]
