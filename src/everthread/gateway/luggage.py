"""What comes with a message: fetched and kept in the home, and what can be read or heard of it put into words.

That takes its time, so it is done after the message is stored and before its turn begins; within a bound, so that
nobody waits long for a film. What can't be had is said to be so, and the message is answered without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import ModelError, PlatformError, PlatformUnavailable
from everthread.domain.media import Media
from everthread.domain.model import whole
from everthread.gateway.room import Room
from everthread.ports import Clock, Platform
from everthread.ports.platform import Update
from everthread.ports.transcriber import Transcriber

log = logging.getLogger("everthread.gateway")

BYTES_MAX = 20_000_000
AT_ONCE_BYTES_MAX = 3 * BYTES_MAX
"""Of all that is being fetched, wherever it came from: what more there is waits for it."""
COUNT_MAX = 10
READ_BYTES_MAX = 30_000
"""Of a file that is text, what the model is shown."""
FETCH_S_MAX = 30.0
HEAR_S_MAX = 45.0
TRIES = 3
PAUSE_S = 1.0

NO_EARS = "I can't listen to voice messages here, so I don't know what you said. Please write it to me."
NOT_HEARD = "I could not make out your voice message just now. Please try again in a while, or write it to me."
NOT_FETCHED = "(it could not be fetched)"
_WHICH_CHARS_MAX = 40
_NAME_CHARS_MAX = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_TEXT = re.compile(r"text/.*|application/(json|toml|xml|yaml|x-yaml|javascript|x-sh)")


class Unpacked(Struct, frozen=True):
    """What came with a message, as the model is told of it."""

    media: tuple[Media, ...]
    notice: str = ""
    """What whoever wrote it is to be told: mostly nothing. A voice that can't be heard is not among the media."""

    @property
    def to_fetch(self) -> tuple[Media, ...]:
        return tuple(media for media in self.media if media.handle)


class Luggage:
    def __init__(
        self, platforms: Mapping[str, Platform], folder: Path, transcriber: Transcriber | None, clock: Clock
    ) -> None:
        self._platforms = platforms
        self._folder = folder
        self._transcriber = transcriber
        self._clock = clock
        self._room = Room(AT_ONCE_BYTES_MAX)

    def handed_over(self, update: Update) -> Unpacked:
        """What is to be fetched later, and where each will be kept. Does nothing that takes time."""
        platform = self._platforms.get(update.platform)
        if not update.media or platform is None or not platform.capabilities.fetches:
            return Unpacked(tuple(replace(media, handle="") for media in update.media))
        heard = [media for media in update.media[:COUNT_MAX] if media.kind != "voice" or self._transcriber is not None]
        unheard = len(heard) < len(update.media[:COUNT_MAX])
        named = tuple(replace(media, path=_path(update, number, media)) for number, media in enumerate(heard))
        return Unpacked(named, NO_EARS if unheard else "")

    async def unpacked(self, platform_name: str, packed: tuple[Media, ...]) -> Unpacked:
        """Fetch what has a handle. Nothing of it can fail: what is not to be had is in words."""
        platform = self._platforms.get(platform_name)
        made: list[Media | None] = []
        for media in packed:
            size = min(media.size or BYTES_MAX, BYTES_MAX)
            async with self._room.taken(size):
                made.append(await self._made(platform, media, size))
        return Unpacked(tuple(one for one in made if one is not None), NOT_HEARD if None in made else "")

    async def _made(self, platform: Platform | None, media: Media, size: int) -> Media | None:
        """What is in it, kept or in words; none of a voice that was not heard."""
        content = await self._fetched(platform, media, size) if platform is not None else None
        if content is None:
            return replace(media, handle="", path="", words=NOT_FETCHED)
        if media.kind != "voice":
            return await self._kept(media, content)
        heard = await self._heard(media, content)
        return replace(media, handle="", path="", words=heard) if heard is not None else None

    def place_of(self, media: Media) -> str:
        """Where it is kept, for whoever opens it."""
        return str(self._folder / media.path) if media.path else ""

    def remove(self, media: Media) -> None:
        """It was fetched for nobody."""
        if media.path:
            with suppress(OSError):
                (self._folder / media.path).unlink(missing_ok=True)

    async def _fetched(self, platform: Platform, media: Media, bytes_max: int) -> bytes | None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                for tried in range(1, TRIES + 1):
                    try:
                        return await platform.fetch(media, bytes_max)
                    except PlatformUnavailable as error:
                        if tried == TRIES:
                            raise
                        await self._clock.sleep(max(error.retry_after, tried * PAUSE_S))
        except (PlatformError, TimeoutError) as error:
            log.warning("%s: what came with a message was not fetched: %s", platform.name, error or "too slow")
        except Exception:
            # A mistake of an adapter's, and it would be one again: the message must not wait for ever.
            log.exception("%s: what came with a message was not fetched", platform.name)
        return None

    async def _heard(self, media: Media, content: bytes) -> str | None:
        if self._transcriber is None:
            return None
        try:
            async with asyncio.timeout(HEAR_S_MAX):
                return whole(await self._transcriber.transcribe(content, media.name, media.mime)) or None
        except (ModelError, TimeoutError) as error:
            log.warning("a voice message was not heard: %s", error or "too slow")
        except Exception:
            log.exception("a voice message was not heard")
        return None

    async def _kept(self, media: Media, content: bytes) -> Media:
        media = replace(media, handle="")
        try:
            await asyncio.to_thread(_write, self._folder / media.path, content)
        except OSError as error:
            # There may be the beginning of it.
            self.remove(media)
            log.warning("what came with a message was not kept: %s", error.strerror)
            return replace(media, path="", words="(it could not be kept)")
        return replace(media, words=_words_in(media, content))


def _path(update: Update, number: int, media: Media) -> str:
    """Within the folder of such files. Delivered twice, it is kept once; a voice is not kept at all."""
    if media.kind == "voice":
        return ""
    which = f"{update.account}-{update.update_id}-{number}"
    if len(which) > _WHICH_CHARS_MAX or _UNSAFE.search(which) or which.startswith("."):
        # Whatever it is called, no other may be called the same: it would take its place.
        which = hashlib.sha256(which.encode(errors="replace")).hexdigest()[:_WHICH_CHARS_MAX]
    name = _UNSAFE.sub("_", media.name or media.kind)[-_NAME_CHARS_MAX:]
    return f"{_UNSAFE.sub('_', update.platform)}/{which}-{name}"


def _words_in(media: Media, content: bytes) -> str:
    """What is in a file that is text."""
    if not _TEXT.fullmatch(media.mime) or b"\0" in content[:READ_BYTES_MAX]:
        return ""
    text = whole(content[:READ_BYTES_MAX].decode("utf-8", "replace"))
    return text if len(content) <= READ_BYTES_MAX else f"{text}\n(and so on; the rest is in the file)"


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
