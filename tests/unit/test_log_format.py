"""Text of log records: types and references in place of anything that may quote a person."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from everthread.domain.errors import Fenced, ModelRefused, StoreBusy
from everthread.domain.model import SessionKey
from everthread.log_context import Private
from everthread.log_format import FRAMES_MAX, describe_error, format_record, format_trace

WORD = "mango"


class Elsewhere(StoreBusy):
    """Subclass by somebody else."""


def record(
    text: Any, *args: Any, name: str = "everthread.agent", error: BaseException | None = None, **more: Any
) -> Any:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, text, args, exc_info)
    made.__dict__.update(more)
    return made


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - only the traceback is wanted
        return caught


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (ValueError(WORD), "ValueError"),
        (ModelRefused(WORD), "ModelRefused"),
        (Elsewhere(WORD), "Elsewhere"),
        (PermissionError(errno.EACCES, WORD, WORD), "PermissionError EACCES"),
        (ExceptionGroup(WORD, [KeyError(WORD), ValueError(WORD)]), "ExceptionGroup of KeyError, ValueError"),
        (Private(WORD), "private text"),
        (Private(WORD, "too slow"), "too slow"),
        (Private(StoreBusy(WORD)), "StoreBusy"),
        ([WORD], "list"),
        (WORD.encode(), "bytes"),
        (type(f"{WORD} juice", (Exception,), {})(), "Exception"),
    ],
    ids=str,
)
def test_a_value_that_may_quote_a_person_is_named_by_its_kind(value: Any, shown: str) -> None:
    found = format_record(record("%s: %s", "post", value))
    assert found.text == f"post: {shown} (reference {found.reference})"
    assert len(found.reference) == 8
    assert found.private_text == f"post: {value}"


def test_errors_that_hold_no_words_of_a_person_are_shown_whole() -> None:
    found = format_record(record("%s: %s", "lane", Fenced("Lease a: taken over")))
    assert (found.text, found.reference, found.private_text) == ("lane: Lease a: taken over", "", "")


def test_names_numbers_and_keys_are_shown() -> None:
    key = SessionKey.parse("agent:main:post:dm:1")
    found = format_record(record("%s: %d of %.1f s, %s", key, 3, 2.5, None))
    assert (found.text, found.reference) == ("agent:main:post:dm:1: 3 of 2.5 s, None", "")
    found = format_record(record("%(what)s %(error)s", {"what": "write", "error": ValueError(WORD)}))
    assert found.text == f"write ValueError (reference {found.reference})"


def test_the_reference_of_the_caller_is_used() -> None:
    assert format_record(record("no answer: %s", ValueError(WORD), reference="ABCD1234")).reference == "ABCD1234"


def test_an_exception_as_the_message_is_named_only() -> None:
    found = format_record(record(ValueError(WORD)))
    assert found.text == f"ValueError (reference {found.reference})"


def test_messages_of_other_libraries_are_left_out_whole() -> None:
    for text, args in ((f"sent {WORD}", ()), ("sent %s", (WORD,))):
        found = format_record(record(text, *args, name="httpx._client"))
        assert found.text == f"message of httpx._client (reference {found.reference})"
        assert found.private_text == f"sent {WORD}"
    assert WORD not in format_record(record("x", name=f"about {WORD}!")).text


def test_a_traceback_has_frames_and_types_of_the_whole_chain() -> None:
    error = raised(ValueError(WORD))
    error.__cause__ = raised(KeyError(WORD))
    error.__cause__.__context__ = error
    found = format_record(record("failed", error=error))
    assert WORD not in found.trace + found.text
    assert found.trace.count("Traceback") == 2
    assert f'File "{__file__}", line' in found.trace
    assert found.private_text.endswith(f"ValueError: {WORD}")


def test_a_traceback_is_bounded_and_names_no_generated_code() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        exec(compile("raise ValueError", f"<{WORD}>", "exec"))

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any
        deep(FRAMES_MAX + 20)
    trace = format_trace(caught.value)
    assert WORD not in trace
    assert "File <generated code>" in trace
    assert trace.count("File ") == FRAMES_MAX


def test_an_error_is_described_by_its_type() -> None:
    assert describe_error(TimeoutError()) == "TimeoutError"
