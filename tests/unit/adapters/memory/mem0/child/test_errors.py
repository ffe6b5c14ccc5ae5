"""Errors of Mem0's library, classified and described without their text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everthread.adapters.memory.mem0.child import errors


class StatusError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__("words of a conversation")
        self.status_code = status_code


class APITimeoutError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (StatusError(422), "never", "answered 422"),
        (StatusError(503), "later", "answered 503"),
        (StatusError(401), "later", "does not accept the key"),
        (StatusError(404), "later", "no such model or address"),
        (APITimeoutError(), "later", "can't be reached or does not answer"),
        (OSError("full"), "later", "the library failed (OSError)"),
        (KeyError("words"), "odd", "the library failed (KeyError)"),
        (errors.UnreadableResponse(), "odd", "response can't be read"),
    ],
)
def test_an_error_is_classified_and_described_without_its_text(error: Exception, kind: str, message: str) -> None:
    assert errors.kind(error) == kind
    assert message in errors.message(error)
    assert "words" not in errors.message(error)


def test_the_cause_of_a_wrapped_error_counts() -> None:
    wrapped = ValueError("words")
    wrapped.__cause__ = StatusError(400)
    assert (errors.kind(wrapped), errors.message(wrapped)) == ("never", "the model's endpoint answered 400")


def library(response: str, fails: bool = False) -> tuple[Any, Any]:
    def embed(text: str) -> list[float]:
        if fails:
            raise APITimeoutError
        return [1.0]

    return SimpleNamespace(generate_response=lambda: response), SimpleNamespace(embed=embed, embed_batch=embed)


@pytest.mark.parametrize("response", ["", "[]", '{"memory": 1}', "not JSON"])
def test_a_response_of_the_wrong_format_is_a_failure_that_the_library_swallowed(response: str) -> None:
    llm, embedder = library(response)
    errors.watch(llm, embedder, lambda text: text)
    errors.begin()
    assert llm.generate_response() == response
    with pytest.raises(errors.SwallowedFailure) as caught:
        errors.raise_swallowed()
    assert isinstance(caught.value.__cause__, errors.UnreadableResponse)


def test_a_text_that_could_not_be_embedded_is_a_failure_and_a_new_request_starts_clean() -> None:
    llm, embedder = library('{"memory": []}', fails=True)
    errors.watch(llm, embedder, lambda text: text)
    errors.begin()
    llm.generate_response()
    errors.raise_swallowed()
    with pytest.raises(APITimeoutError):
        embedder.embed("bees")
    with pytest.raises(errors.SwallowedFailure):
        errors.raise_swallowed()
    errors.begin()
    errors.raise_swallowed()
