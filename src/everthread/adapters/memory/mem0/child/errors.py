"""What Mem0 keeps to itself: failures that it swallows, and its errors in our words. Part of the child process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

_request = threading.local()
_UNREACHED = ("APIConnectionError", "APITimeoutError")


class Missed(Exception):
    """Mem0 says that all is well, and has left something out: a text that it could not embed, an answer of the model's
    that it could not read."""


class NotRead(Exception):
    """The model's answer is not what Mem0 asked it for, which Mem0 takes for "nothing to remember"."""


def begin() -> None:
    _request.missed = None


def refuse_what_was_missed() -> None:
    if _request.missed is not None:
        raise Missed from _request.missed


def watch(llm: Any, embedder: Any, remove_code_blocks: Callable[[str], str]) -> None:
    """Have it noticed in the thread of each request."""
    respond = llm.generate_response

    def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                _request.missed = error
                raise

        return call

    def responded(*args: Any, **kwargs: Any) -> Any:
        said = respond(*args, **kwargs)
        try:
            is_read = isinstance(json.loads(remove_code_blocks(said), strict=False)["memory"], list)
        except (ValueError, TypeError, KeyError, AttributeError):
            is_read = False
        if not is_read:
            _request.missed = NotRead()
        return said

    llm.generate_response = responded
    embedder.embed, embedder.embed_batch = noticed(embedder.embed), noticed(embedder.embed_batch)


def kind(error: BaseException) -> str:
    """`later`, `never`, or `odd`: nobody can say whether it would be taken another time."""
    for one in _causes(error):
        status = getattr(one, "status_code", None)
        if isinstance(status, int):
            return "never" if status in (400, 413, 422) else "later"
        if type(one).__name__ in _UNREACHED or isinstance(one, OSError) or type(one).__module__ == "shelf":
            return "later"
    return "odd"


def in_words(error: BaseException) -> str:
    """Their texts may have anybody's words in them, or a key: the kind of error is enough."""
    for one in _causes(error):
        status = getattr(one, "status_code", None)
        if status in (401, 403):
            return f"the model's endpoint does not take the key ({status}); look at the .env file"
        if status == 404:
            return "the endpoint has no such model or address (404); check the settings"
        if isinstance(status, int):
            return f"the model's endpoint answers {status}"
        if type(one).__module__ == "shelf":
            return str(one)
        if isinstance(one, NotRead):
            return "the model's answer can't be read; try another model"
        if type(one).__name__ in _UNREACHED:
            return f"the model's endpoint can't be reached or does not answer ({type(one).__name__})"
    return f"the library failed ({type(error).__name__})"


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
