"""Compression thresholds, the split of a conversation into summary and tail, and the gain of a pass."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.compression.policy import (
    BULKY_CHARS_MAX,
    EXTRACT_CHARS_MAX,
    EXTRACT_NAME,
    READS_TOKENS_MIN,
    Bounds,
    ContextFill,
    Urgency,
    bounds,
    cut,
    extract,
    gain,
    prune,
    shorten_middle,
    size_of,
    urgency,
)
from everthread.agent.compression.summarizer import render_turn
from everthread.config.schema import CompressionSettings
from everthread.domain.model import Message, Role, ToolCall, Turn, TurnStatus
from everthread.domain.spend import BYTES_PER_TOKEN

ROOMY = ContextFill(head_bytes=3_000, history_bytes=6_000, room_bytes=1_000_000)
WINDOW = 128_000


def turn(number: int, said: str, answer: str = "fine", *between: Message) -> Turn:
    messages = (Message(Role.USER, said), *between, Message(Role.ASSISTANT, answer))
    return Turn("s", number, f"t{number}", TurnStatus.DONE, 0.0, messages)


def with_tool(number: int, result: str, arguments: str = "{}") -> Turn:
    call = Message(Role.ASSISTANT, "", (ToolCall(f"c{number}", "read", arguments),))
    return turn(number, "look", "seen", call, Message(Role.TOOL, result, tool_call_id=f"c{number}", name="read"))


# --- Thresholds ------------------------------------------------------------------------------------------------------


def test_half_of_the_window_is_the_threshold() -> None:
    within = bounds(CompressionSettings(), WINDOW, WINDOW, "one")
    assert (within.threshold_tokens, within.refusal) == (64_000, "")
    assert within.tail_tokens < within.threshold_tokens / 2


def test_a_summariser_with_a_smaller_context_lowers_the_threshold() -> None:
    assert bounds(CompressionSettings(), WINDOW, 40_000, "aux").threshold_tokens == 40_000
    assert bounds(CompressionSettings(), WINDOW, 64_001, "aux").threshold_tokens == 64_000


def test_a_summariser_with_a_too_small_context_is_refused_with_the_setting_to_change() -> None:
    assert bounds(CompressionSettings(), WINDOW, READS_TOKENS_MIN, "aux").refusal == ""
    refusal = bounds(CompressionSettings(), WINDOW, READS_TOKENS_MIN - 1, "tiny/aux").refusal
    assert "tiny/aux has a context of 15,999 tokens" in refusal
    assert "auxiliary_model" in refusal


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (ContextFill(3_000, 6_000, 1_000_000, context_tokens=63_999), Urgency.NONE),
        (ContextFill(3_000, 6_000, 1_000_000, context_tokens=64_000), Urgency.SOON),
        (ContextFill(3_000, 6_000, 1_000_000, context_tokens=108_800), Urgency.NOW),
        # Without usage the tokens are estimated; reported usage overrides the estimate.
        (ContextFill(0, 64_000 * BYTES_PER_TOKEN, 1_000_000), Urgency.SOON),
        (ContextFill(0, 64_000 * BYTES_PER_TOKEN, 1_000_000, context_tokens=50_000), Urgency.NONE),
        # The history must fit into its byte limit whatever token count the model reports.
        (ContextFill(0, 900_000, 1_000_000, context_tokens=100), Urgency.SOON),
        (ContextFill(0, 1_000_001, 1_000_000, context_tokens=100), Urgency.NOW),
        (ContextFill(0, 100, 1_000_000, context_tokens=100, too_long=True), Urgency.NOW),
    ],
)
def test_urgency_follows_the_fill_of_the_context(fill: ContextFill, expected: Urgency) -> None:
    assert urgency(fill, bounds(CompressionSettings(), WINDOW, WINDOW, "one")) is expected


@pytest.mark.parametrize(
    ("tokens", "coming", "expected"),
    [
        (40_000, 0, Urgency.NONE),
        (40_000, 68_799, Urgency.NONE),
        (40_000, 68_800, Urgency.NOW),
        (70_000, 10_000, Urgency.SOON),
        # The next message is too large on its own: a summary of the history would not help.
        (20_000, 500_000, Urgency.NONE),
    ],
)
def test_the_size_of_the_next_message_counts(tokens: int, coming: int, expected: Urgency) -> None:
    within = bounds(CompressionSettings(), WINDOW, WINDOW, "one")
    assert urgency(ContextFill(100, 100, 1_000_000, tokens), within, coming) is expected


@given(st.integers(256, 2_000_000), st.integers(1, 2_000_000), st.floats(0.05, 0.8), st.integers(0, 1_000_000))
def test_the_bounds_stay_in_order_for_all_settings(window: int, reads: int, share: float, tail: int) -> None:
    within = bounds(CompressionSettings(True, share, tail), window, reads, "one")
    assert 0 <= within.tail_tokens <= within.threshold_tokens // 3 + 1
    assert within.threshold_tokens <= within.stop_tokens <= window
    assert within.threshold_tokens <= reads
    assert bool(within.refusal) == (reads < READS_TOKENS_MIN)


# --- Split into summary and tail -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5_000), max_size=30), st.integers(0, 3_000), st.integers(0, 3_000))
def test_a_cut_loses_no_turn_and_keeps_the_newest_that_fit(sizes: list[int], tail: int, newest: int) -> None:
    turns = [turn(number, "x" * size, "") for number, size in enumerate(sizes, 1)]
    parts = cut(turns, tail, newest)
    assert [*parts.covered, *parts.kept] == turns
    kept = sum(map(size_of, parts.kept))
    assert kept <= tail * BYTES_PER_TOKEN or len(parts.kept) == 1
    if parts.covered and parts.kept:
        assert kept + size_of(parts.covered[-1]) > tail * BYTES_PER_TOKEN, "one more turn would have fitted"
    if turns and not parts.kept:
        assert size_of(turns[-1]) > newest * BYTES_PER_TOKEN, "the newest turn could have been kept"


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 300))
def test_a_tool_call_and_its_result_stay_in_the_same_part(tools: list[bool], tail: int) -> None:
    turns = [with_tool(n, "found " * 20) if tool else turn(n, "hello " * 20) for n, tool in enumerate(tools, 1)]
    parts = cut(turns, tail, 10_000)
    assert [*parts.covered, *parts.kept] == turns
    for half in (parts.covered, parts.kept):
        # Compare stored messages: rendering a request repairs missing results and would hide a split pair.
        messages = [message for part in half for message in part.messages]
        called = [call.id for message in messages for call in message.tool_calls]
        assert called == [message.tool_call_id for message in messages if message.role is Role.TOOL]


def test_old_tool_output_is_shortened_and_user_text_is_not() -> None:
    bulky = with_tool(1, "begin " + "x" * 50_000 + " end", json.dumps({"text": "y" * 50_000}))
    said = turn(2, "w" * 50_000)
    read = render_turn(prune(bulky))
    assert len(read) < 3 * BULKY_CHARS_MAX
    assert "begin " in read
    assert " end" in read
    assert "characters left out" in read
    assert prune(said) == said
    assert [m.tool_call_id for m in prune(bulky).messages] == [m.tool_call_id for m in bulky.messages]


@given(st.text(max_size=300), st.integers(30, 100))
def test_a_shortened_text_keeps_its_beginning_and_its_end(text: str, chars_max: int) -> None:
    short = shorten_middle(text, chars_max)
    if len(text) <= chars_max:
        assert short == text
    else:
        begin, end = short.split(" [... ")[0], short.rsplit(" ...] ", 1)[1]
        assert text.startswith(begin)
        assert text.endswith(end)
        assert len(short) < chars_max + 60


# --- Gain of a pass --------------------------------------------------------------------------------------------------

WITHIN = Bounds(threshold_tokens=64_000, stop_tokens=100_000, tail_tokens=16_000)


def test_a_pass_that_saves_a_tenth_of_the_window_is_effective() -> None:
    fill = ContextFill(head_bytes=10_000, history_bytes=90_000, room_bytes=200_000, context_tokens=30_000)
    good = gain(fill, WITHIN, covered_bytes=60_000, kept_bytes=30_000, added_bytes=10_000)
    assert (good.tokens_before, good.tokens_after, good.poor) == (30_000, 15_000, False)
    assert not gain(fill, WITHIN, covered_bytes=20_000, kept_bytes=70_000, added_bytes=10_000).poor
    assert gain(fill, WITHIN, covered_bytes=20_000, kept_bytes=70_000, added_bytes=10_001).poor


def test_a_pass_that_stays_over_the_threshold_is_ineffective() -> None:
    fill = ContextFill(head_bytes=10_000, history_bytes=90_000, room_bytes=200_000, context_tokens=100_000)
    assert gain(fill, WITHIN, covered_bytes=30_000, kept_bytes=60_000, added_bytes=100).poor


# --- Mechanical extract ----------------------------------------------------------------------------------------------


def test_an_extract_is_labelled_and_keeps_the_previous_summary() -> None:
    text = extract("## Goal\n- boats", [turn(7, "what of masts?", "they are tall")])
    assert text.startswith(EXTRACT_NAME)
    assert "mechanical" in EXTRACT_NAME
    assert "## Goal\n- boats" in text
    assert "turn 7: what of masts? -> they are tall" in text
    assert extract(text, [turn(8, "and sails?")]).count(EXTRACT_NAME) == 1, "extracts do not nest"


@given(st.text(max_size=30_000), st.lists(st.text(max_size=400), min_size=1, max_size=40))
def test_an_extract_stays_small(previous: str, said: list[str]) -> None:
    text = extract(previous, [turn(number, words) for number, words in enumerate(said, 1)])
    assert len(text) <= EXTRACT_CHARS_MAX + 300
