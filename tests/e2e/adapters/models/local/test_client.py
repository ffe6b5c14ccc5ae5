"""The process of the local model, with a toy model and a toy runtime."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fake_local_model import (
    PlainClient,
    a_request,
    asked,
    ends,
    is_running,
    make_folder,
    pids,
    wait_until,
)

from everthread.adapters.models.local.client import CONTEXT_TOKENS, OUTPUT_TOKENS_MAX, LocalModel
from everthread.domain.errors import ModelUnavailable, ModelUnknown
from everthread.domain.model import Message, Role
from everthread.ports.model import Answer, Delta, ModelClient, Prompt


@asynccontextmanager
async def local_model(folder: Path, **more: Any) -> AsyncIterator[LocalModel]:
    model = LocalModel(folder, PlainClient, **more)
    try:
        yield model
    finally:
        await model.aclose()
    for pid in pids(folder):
        assert not is_running(pid), "left a process behind"


async def answer(model: ModelClient, **more: Any) -> list[Delta | Answer]:
    return [piece async for piece in model.stream(a_request(**more))]


class ClientContract:
    """The contract of the model port."""

    @asynccontextmanager
    async def client(self, tmp_path: Path) -> AsyncIterator[ModelClient]:
        raise NotImplementedError
        yield

    async def test_the_last_piece_is_the_whole_answer(self, tmp_path: Path) -> None:
        async with self.client(tmp_path) as client:
            *pieces, last = await answer(client)
        assert isinstance(last, Answer)
        assert last.message.role is Role.ASSISTANT
        assert last.message.content == "".join(piece.text for piece in pieces if isinstance(piece, Delta)) != ""

    async def test_the_same_prompt_gives_the_same_bytes(self, tmp_path: Path) -> None:
        async with self.client(tmp_path) as client:
            assert client.head(Prompt("m", "Be brief.")) == client.head(Prompt("m", "Be brief."))
            turns = [Message(Role.USER, "one"), Message(Role.ASSISTANT, "two")]
            assert client.encode(turns) == client.encode(turns[:1]) + b"," + client.encode(turns[1:])


class TestLocalModel(ClientContract):
    @asynccontextmanager
    async def client(self, tmp_path: Path) -> AsyncIterator[ModelClient]:
        async with local_model(make_folder(tmp_path)) as model:
            yield model


async def test_the_local_model_is_small_and_has_no_tools(tmp_path: Path) -> None:
    async with local_model(tmp_path) as model:
        traits = model.traits("smollm2-135m")
    assert (traits.small, traits.tools, traits.context_tokens) == (True, False, CONTEXT_TOKENS)


async def test_a_model_that_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    async with local_model(tmp_path / "nowhere") as model:
        with pytest.raises(ModelUnknown, match="run: everthread setup local"):
            await answer(model)


async def test_one_process_answers_all_requests_from_the_first_one_on(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path)) as model:
        assert pids(tmp_path) == []
        await asyncio.gather(answer(model), answer(model))
        await answer(model)
        [pid] = pids(tmp_path)
        assert os.getsid(pid) != os.getsid(0), "Ctrl-C would reach the process"


async def test_the_length_of_an_answer_is_limited(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path)) as model:
        *pieces, _ = await answer(model, output_tokens_max=8192)
    assert len(pieces) == OUTPUT_TOKENS_MAX


async def test_each_connection_is_closed(tmp_path: Path) -> None:
    clients: list[Counted] = []

    class Counted(PlainClient):
        open = True

        async def aclose(self) -> None:
            self.open = False

    def connect(base_url: str, key: str) -> Counted:
        clients.append(Counted(base_url, key))
        return clients[-1]

    model = LocalModel(make_folder(tmp_path), connect)
    await answer(model)
    await answer(model)
    assert [client.open for client in clients] == [True, False, False]
    await model.aclose()
    assert not any(client.open for client in clients)


async def test_recall_precedes_the_question(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path)) as model:
        await answer(model, recall="Facts about me:\n- My dog is called Bruno.")
        await answer(model)
    assert asked(tmp_path) == ["Facts about me:\n- My dog is called Bruno.\n\nQuestion: Hello", "Hello"]


async def test_closing_a_stream_early_stops_the_generation(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path)) as model:
        stream: Any = model.stream(a_request(output_tokens_max=256))
        async with aclosing(stream) as pieces:
            await anext(pieces)
        await asyncio.to_thread(wait_until, lambda: ends(tmp_path) == ["cut off"])
        await answer(model)


@pytest.mark.parametrize(
    ("does", "said"),
    [("raises", "ValueError: no model in there"), ("exits", r"exit code 3"), ("hangs", "did not start within 1 s")],
)
async def test_a_process_that_does_not_start_is_reported_in_one_line(tmp_path: Path, does: str, said: str) -> None:
    async with local_model(make_folder(tmp_path, does), start_s_max=1.0) as model:
        with pytest.raises(ModelUnavailable, match=said) as caught:
            await answer(model)
        assert "\n" not in str(caught.value)
        assert "everthread setup local" in str(caught.value)
        assert not is_running(pids(tmp_path)[0])


async def test_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path)) as model:
        await answer(model)
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        assert isinstance((await answer(model))[-1], Answer)
    assert len(pids(tmp_path)) == 2


async def test_a_request_is_retried_once_if_the_process_dies(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path, "dies once")) as model:
        assert isinstance((await answer(model))[-1], Answer)
    assert len(pids(tmp_path)) == 2


async def test_a_request_that_kills_every_process_fails(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path, "dies")) as model:
        with pytest.raises(ModelUnavailable):
            await answer(model)
    assert len(pids(tmp_path)) == 2


async def test_a_partial_answer_is_not_restarted(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path, "dies in mid-answer")) as model:
        with pytest.raises(ModelUnavailable):
            await answer(model)
        assert len(pids(tmp_path)) == 1
        assert isinstance((await answer(model))[-1], Answer)


async def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with local_model(make_folder(tmp_path, "hangs")) as model:
        asking = asyncio.ensure_future(answer(model))
        await asyncio.to_thread(wait_until, lambda: pids(tmp_path) != [])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not is_running(pids(tmp_path)[0])
