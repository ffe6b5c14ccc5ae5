"""Failures that Mem0 swallows, and translation of its errors. Runs in the child process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

_request = threading.local()
# Errors of this module are ours, and their text is safe to show.
_STORE = "vector_store"
_CONNECTION_ERRORS = ("APIConnectionError", "APITimeoutError")


class SwallowedFailure(Exception):
    """Mem0 reported success but skipped something: a text it could not embed, or a model response it could not read."""


class UnreadableResponse(Exception):
    """The model's response has the wrong format, which Mem0 treats as "nothing to remember"."""


def begin() -> None:
    _request.swallowed = None


def raise_swallowed() -> None:
    if _request.swallowed is not None:
        raise SwallowedFailure from _request.swallowed


def watch(llm: Any, embedder: Any, remove_code_blocks: Callable[[str], str]) -> None:
    """Record failures of the model and the embedder in the thread of each request."""
    respond = llm.generate_response

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                _request.swallowed = error
                raise

        return call

    def checked(*args: Any, **kwargs: Any) -> Any:
        response = respond(*args, **kwargs)
        try:
            is_valid = isinstance(json.loads(remove_code_blocks(response), strict=False)["memory"], list)
        except (ValueError, TypeError, KeyError, AttributeError):
            is_valid = False
        if not is_valid:
            _request.swallowed = UnreadableResponse()
        return response

    llm.generate_response = checked
    embedder.embed, embedder.embed_batch = recorded(embedder.embed), recorded(embedder.embed_batch)


def kind(error: BaseException) -> str:
    """Classify an error: retry `later`, `never`, or `odd` (unknown)."""
    for one in _causes(error):
        status = getattr(one, "status_code", None)
        if isinstance(status, int):
            return "never" if status in (400, 413, 422) else "later"
        if type(one).__name__ in _CONNECTION_ERRORS or isinstance(one, OSError) or type(one).__module__ == _STORE:
            return "later"
    return "odd"


def message(error: BaseException) -> str:
    """Describe an error without its text, which may contain conversations or a key."""
    for one in _causes(error):
        status = getattr(one, "status_code", None)
        if status in (401, 403):
            return f"the model's endpoint does not accept the key ({status}); check the .env file"
        if status == 404:
            return "the endpoint has no such model or address (404); check the settings"
        if isinstance(status, int):
            return f"the model's endpoint answered {status}"
        if type(one).__module__ == _STORE:
            return str(one)
        if isinstance(one, UnreadableResponse):
            return "the model's response can't be read; try another model"
        if type(one).__name__ in _CONNECTION_ERRORS:
            return f"the model's endpoint can't be reached or does not answer ({type(one).__name__})"
    return f"the library failed ({type(error).__name__})"


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
