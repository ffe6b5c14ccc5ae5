"""What comes with a message. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

MediaKind = Literal["image", "audio", "voice", "video", "file"]
"""`voice` is somebody speaking, in place of writing."""


class Media(Struct, frozen=True, omit_defaults=True):
    """Something that came with a message: what it is, not what is in it."""

    kind: MediaKind
    name: str = ""
    mime: str = ""
    size: int | None = None
    """In bytes; none if that is not certain: not more than this is taken."""
    handle: str = ""
    """What the platform is asked for it by; empty if it can't be, or was fetched."""
    path: str = ""
    """Where it is kept here, or will be while there is a handle."""
    words: str = ""
    """What is said or written in it, as far as that is known."""
