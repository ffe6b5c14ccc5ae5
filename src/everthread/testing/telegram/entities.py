"""Output buffer shared by the markup parsers: text, with entities in UTF-16 units."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from everthread.testing.telegram.objects import MessageEntity


class CannotParse(ValueError):
    """Invalid markup. The message is the Bot API's error text."""


def utf16_len(text: str) -> int:
    return len(text) + sum(1 for char in text if ord(char) > 0xFFFF)


def byte_offset(text: str, index: int) -> int:
    return len(text[:index].encode())


@dataclass(slots=True)
class TextBuilder:
    """Text parsed so far, without its markup."""

    pieces: list[str] = field(default_factory=list[str])
    units: int = 0
    """Length in UTF-16 units."""
    entities: list[MessageEntity] = field(default_factory=list[MessageEntity])

    def push(self, piece: str) -> None:
        self.pieces.append(piece)
        self.units += utf16_len(piece)

    def mark(
        self, kind: str, offset: int, *, url: str | None = None, language: str | None = None, emoji: str | None = None
    ) -> None:
        """Add an entity from the offset to the end of the text. An empty entity is dropped."""
        if self.units > offset:
            made = MessageEntity(kind, offset, self.units - offset, url=url, language=language, custom_emoji_id=emoji)
            self.entities.append(made)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


_LINK = re.compile(r"(?:(https?|ftp|tg|ton|tonsite)://)?([^\s/?#]+)([/?#]\S*)?", re.IGNORECASE)


def link_target(url: str) -> str | None:
    """Normalise the address of a link. Return None if it is invalid."""
    match = _LINK.fullmatch(url.strip())
    if match is None:
        return None
    scheme, host, rest = match[1], match[2], match[3] or ""
    if scheme and scheme.lower() in ("tg", "ton", "tonsite"):
        return f"{scheme.lower()}://{host}{rest}"
    name = host.rpartition("@")[2].partition(":")[0]
    if "." not in name.strip("."):
        return None
    return f"{(scheme or 'http').lower()}://{host.lower()}{rest if rest.startswith('/') else '/' + rest}"
