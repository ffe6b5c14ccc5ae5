"""Shortening and cleaning of texts from servers."""

from __future__ import annotations

from collections.abc import Iterable

LINE_CHARS_MAX = 300
_SECRET_CHARS_MIN = 6


def one_line(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """Put a text on one line of printable characters, at most `chars_max` long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * chars_max]).split())
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def redact(secrets: Iterable[str], text: str) -> str:
    """Replace secrets and the words in them, longest first: `Bearer KEY` hides `KEY` as well."""
    hidden = {part for secret in secrets for part in (secret, *secret.split()) if len(part) >= _SECRET_CHARS_MIN}
    for part in sorted(hidden, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def shorten_middle(text: str, chars_max: int) -> str:
    """Keep the beginning and the end of a long text, and say how much is left out."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def format_size(count: int) -> str:
    """Format a number of bytes."""
    for unit, step in (("MB", 1_000_000), ("kB", 1000)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
