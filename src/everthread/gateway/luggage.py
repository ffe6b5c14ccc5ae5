"""What comes with a message: fetched and kept in the home, and what can be read or heard of it put into words.

It is done before the message is stored, so that the model has it whole; within a bound, so that nobody waits long for
somebody else's film. What can't be had is said to be so, and the message is taken without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from everthread.domain.errors import ModelError, PlatformError, PlatformUnavailable
from everthread.domain.model import whole
from everthread.ports import Clock, Platform
from everthread.ports.platform import Media, Update
from everthread.ports.transcriber import Transcriber

log = logging.getLogger("everthread.gateway")

BYTES_MAX = 20_000_000
COUNT_MAX = 10
READ_BYTES_MAX = 30_000
"""Of a file that is text, what the model is shown."""
FETCH_S_MAX = 30.0
HEAR_S_MAX = 45.0
TRIES = 3
PAUSE_S = 1.0

NO_EARS = "I can't listen to voice messages here, so I don't know what you said. Please write it to me."
NOT_HEARD = "I could not make out your voice message just now. Please try again in a while, or write it to me."
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_TEXT = re.compile(r"text/.*|application/(json|toml|xml|yaml|x-yaml|javascript|x-sh)")


class Luggage:
    def __init__(
        self, platforms: Mapping[str, Platform], folder: Path, transcriber: Transcriber | None, clock: Clock
    ) -> None:
        self._platforms = platforms
        self._folder = folder
        self._transcriber = transcriber
        self._clock = clock

    async def taken_in(self, update: Update) -> tuple[Update, str]:
        """The update with what came with it, and what whoever wrote it is to be told: mostly nothing.

        A voice that can't be heard is taken out of it.
        """
        platform = self._platforms.get(update.platform)
        if not update.media or platform is None or not platform.capabilities.fetches:
            return update, ""
        kept: list[Media] = []
        notice = ""
        for number, media in enumerate(update.media[:COUNT_MAX]):
            if media.kind == "voice" and self._transcriber is None:
                notice = NO_EARS
                continue
            content = await self._fetched(platform, media)
            if content is None:
                kept.append(replace(media, words="(it could not be fetched)"))
            elif media.kind != "voice":
                kept.append(await self._kept(update, number, media, content))
            elif (heard := await self._heard(media, content)) is not None:
                kept.append(replace(media, words=heard))
            else:
                notice = NOT_HEARD
        return replace(update, media=tuple(kept)), notice

    async def _fetched(self, platform: Platform, media: Media) -> bytes | None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                for tried in range(1, TRIES + 1):
                    try:
                        return await platform.fetch(media, BYTES_MAX)
                    except PlatformUnavailable as error:
                        if tried == TRIES:
                            raise
                        await self._clock.sleep(max(error.retry_after, tried * PAUSE_S))
        except (PlatformError, TimeoutError) as error:
            log.warning("%s: what came with a message was not fetched: %s", platform.name, error or "too slow")
        return None

    async def _heard(self, media: Media, content: bytes) -> str | None:
        assert self._transcriber is not None
        try:
            async with asyncio.timeout(HEAR_S_MAX):
                return whole(await self._transcriber.transcribe(content, media.name, media.mime)) or None
        except (ModelError, TimeoutError) as error:
            log.warning("a voice message was not heard: %s", error or "too slow")
        return None

    async def _kept(self, update: Update, number: int, media: Media, content: bytes) -> Media:
        # Delivered twice, it is kept once.
        name = f"{update.account}-{update.update_id}-{number}-{media.name or media.kind}"
        path = self._folder / update.platform / _UNSAFE.sub("_", name)[-120:].lstrip(".")
        try:
            await asyncio.to_thread(_write, path, content)
        except OSError as error:
            log.warning("%s: what came with a message was not kept: %s", update.platform, error.strerror)
            return replace(media, words="(it could not be kept)")
        return replace(media, path=str(path), words=_words_in(media, content))


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
