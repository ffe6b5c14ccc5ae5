"""Other people's words, made fit for one of our lines."""

from __future__ import annotations

from collections.abc import Iterable

LINE_CHARS_MAX = 300
_SECRET_CHARS_MIN = 6


def one_line(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """The text on one line, visible characters only, no longer than this."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * chars_max]).split())
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def without(secrets: Iterable[str], text: str) -> str:
    """The text without these values and without their words, the longest first: `Bearer KEY` hides `KEY` as well."""
    hidden = {part for secret in secrets for part in (secret, *secret.split()) if len(part) >= _SECRET_CHARS_MIN}
    for part in sorted(hidden, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def cut_in_the_middle(text: str, chars_max: int) -> str:
    """The beginning and the end, and between them how much is missing."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def size(count: int) -> str:
    """A number of bytes as people say it."""
    for unit, step in (("MB", 1_000_000), ("kB", 1000)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
