"""Shortening and cleaning of texts from servers."""

from everthread.adapters.mcp.text import format_size, one_line, redact, shorten_middle


def test_text_is_reduced_to_one_line() -> None:
    assert one_line("a\n\tb\x1b[31m  c\u2028d") == "a b [31m c d"
    assert len(one_line("y" * 10_000, 50)) == 50


def test_keys_are_redacted_from_a_text() -> None:
    assert redact(["Bearer abcdef-123", "on"], "token abcdef-123 is on: Bearer abcdef-123") == "token *** is on: ***"


def test_a_long_answer_keeps_its_beginning_and_its_end() -> None:
    cut = shorten_middle("a" * 60 + "b" * 60, 100)
    assert cut == "a" * 50 + "\n[... 20 characters left out ...]\n" + "b" * 50
    assert shorten_middle("short", 100) == "short"


def test_sizes_are_formatted_with_units() -> None:
    assert [format_size(n) for n in (8, 1500, 2_000_000)] == ["8 bytes", "1.5 kB", "2.0 MB"]
