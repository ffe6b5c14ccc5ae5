"""Attachments of a message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

MediaKind = Literal["image", "audio", "voice", "video", "file"]
"""`voice` is a recorded voice message, `audio` any other sound file."""


class Media(Struct, frozen=True, omit_defaults=True):
    """The description of an attachment, without its content."""

    kind: MediaKind
    name: str = ""
    mime: str = ""
    size: int | None = None
    """The size in bytes, which bounds the download. None if unknown."""
    handle: str = ""
    """The platform's id to download the file. Empty if it was downloaded, or can't be."""
    path: str = ""
    """The local path of the file; while `handle` is set, the path to download it to."""
    words: str = ""
    """The transcript or text of the file, as far as known."""


FILE_BYTES_MAX = 20_000_000
"""Larger files are not fetched."""


def reserved_bytes(media: Sequence[Media]) -> int:
    """Return the bytes that the files of these attachments may take: as announced, or the largest size."""
    return sum(min(FILE_BYTES_MAX if one.size is None else one.size, FILE_BYTES_MAX) for one in media if one.path)


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_file_name(name: str) -> str:
    """Return the name with an underscore in place of everything that is unusual in a file name."""
    return _UNSAFE.sub("_", name)
