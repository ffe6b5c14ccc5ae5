"""Server-sent events split anywhere, and merging of deltas."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everthread.adapters.models.sse import EventParser, SseEvent, StreamTooLarge, merge_deltas
from everthread.ports.model import Delta


def parsed(*chunks: bytes) -> list[SseEvent]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.end()


def data(*texts: bytes) -> list[SseEvent]:
    return [SseEvent(b"", text) for text in texts]


TEXT = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)
LINES = st.lists(TEXT, min_size=1, max_size=3)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[SseEvent]]:
    """Generate a stream in any allowed notation, with its events."""
    stream, events = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])), []
    end = draw(ENDS)
    for name, lines in draw(st.lists(st.tuples(TEXT, LINES), max_size=5)):
        if draw(st.booleans()):
            stream += b": a comment: data" + end
        space = draw(st.sampled_from([b" ", b""]))
        shown = [line for line in lines if space or not line.startswith(" ")] or ["x"]
        name = name.strip()
        if name:
            stream += b"event:" + space + name.encode() + end
        stream += b"".join(b"data:" + space + line.encode() + end for line in shown) + end
        events.append(SseEvent(name.encode(), "\n".join(shown).encode()))
    return stream, events


@example((b"\xef\xbb\xbfdata: 1\n\n", [SseEvent(b"", b"1")]), [1])
@example((b"data: 1\r\ndata: 2\r\n\r\n", [SseEvent(b"", b"1\n2")]), [8])
@example((b"data: \xc3\xa4\n\n", [SseEvent(b"", "ä".encode())]), [7])
@given(streams(), st.lists(st.integers(min_value=0, max_value=400)))
def test_events_are_the_same_wherever_the_bytes_are_split(
    written: tuple[bytes, list[SseEvent]], cuts: list[int]
) -> None:
    stream, events = written
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert parsed(*(stream[a:b] for a, b in zip(at, at[1:], strict=False))) == events


@given(st.binary(max_size=300), st.integers(min_value=1, max_value=7))
def test_any_bytes_give_the_same_events_for_every_split(stream: bytes, size: int) -> None:
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert parsed(*pieces) == parsed(stream)


def test_comments_and_events_without_data_are_left_out() -> None:
    assert parsed(b": ping\n\nevent: ping\n\nid: 1\nretry: 5\n\ndata: x\n\n\n\n") == data(b"x")


def test_lines_of_data_are_joined() -> None:
    assert parsed(b"data: a\ndata\ndata:b\n\n") == data(b"a\n\nb")


def test_a_name_belongs_to_one_event() -> None:
    assert parsed(b"event: a\ndata: 1\n\ndata: 2\n\n") == [SseEvent(b"a", b"1"), SseEvent(b"", b"2")]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        (b"data: a\n", SseEvent(b"", b"a\nb")),
        (b"event: named\n", SseEvent(b"named", b"b")),
        (b"data: ", SseEvent(b"", b"data: b")),
    ],
)
def test_a_chunk_that_looks_like_a_whole_event_continues_the_one_that_has_begun(
    begun: bytes, expected: SseEvent
) -> None:
    parser = EventParser()
    assert parser.feed(begun) == []
    assert parser.feed(b"data: b\n\n") == [expected]


def test_an_event_is_returned_as_soon_as_its_line_ends() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\r\n\r") == data(b"1")
    assert parser.feed(b"\ndata: 2\r\n\r\n") == data(b"2")


def test_a_line_end_split_between_chunks_counts_once() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\r") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\n") == data(b"1")


@pytest.mark.parametrize("rest", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"])
def test_the_last_event_needs_no_blank_line(rest: bytes) -> None:
    assert parsed(b"data: 1\n\n", rest) == data(b"1", b"[DONE]")


@pytest.mark.parametrize(
    "chunks",
    [[b"x" * 60] * 2, [b"data: " + b"x" * 101 + b"\n\n"], [b"data: 123456789\n"] * 12, [b": x\n\n"] * 300],
    ids=["line without end", "line", "lines of one event", "all"],
)
def test_lines_events_and_streams_are_limited(chunks: list[bytes]) -> None:
    parser = EventParser(100, 1000)
    with pytest.raises(StreamTooLarge):
        list(map(parser.feed, chunks))


def test_adjacent_deltas_of_one_kind_are_merged() -> None:
    assert list(merge_deltas([Delta("a"), Delta("b"), Delta("c")])) == [Delta("abc")]


def test_reasoning_and_text_keep_their_order() -> None:
    pieces = [Delta(reasoning="hm"), Delta(reasoning="m"), Delta("so"), Delta("!"), Delta(reasoning="or")]
    assert list(merge_deltas(pieces)) == [Delta(reasoning="hmm"), Delta("so!"), Delta(reasoning="or")]


def test_no_deltas_give_no_delta() -> None:
    assert list(merge_deltas([])) == []


def test_deltas_before_an_error_are_passed_on() -> None:
    def breaking() -> Iterator[Delta]:
        yield Delta("as far ")
        yield Delta("as this")
        raise ConnectionError

    heard: list[Delta] = []
    try:
        heard.extend(merge_deltas(breaking()))
    except ConnectionError:
        heard.append(Delta("!"))
    assert heard == [Delta("as far as this"), Delta("!")]
