"""Which conversation a message belongs to, whose that is, and what the model reads of it. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from everthread.domain.model import ChatType, SessionKey, whole
from everthread.domain.text_format import excerpt
from everthread.ports.platform import Media, Update

NAME_CHARS_MAX = 80
_QUOTED_CHARS_MAX = 300

Sharing = Literal["per_user", "shared"]


class Sharings(Struct, frozen=True):
    """Whether those who write in one place have one conversation there, or each their own."""

    groups: Sharing = "per_user"
    threads: Sharing = "shared"


def key_of(update: Update, profile: str, sharings: Sharings) -> SessionKey:
    """Where the update's conversation takes place."""
    shared = sharings.threads if update.chat_type is ChatType.THREAD else sharings.groups
    alone = update.chat_type is ChatType.DM or shared == "shared"
    return SessionKey(
        profile, update.platform, update.chat_type, update.chat, update.thread or None, None if alone else update.user
    )


def is_shared(key: SessionKey) -> bool:
    """Whether several people have one conversation there."""
    return key.chat_type is not ChatType.DM and key.user is None


def owner_of(key: SessionKey, person: str) -> str:
    """Whose the conversation is: the person's who writes, or that of all who share the place."""
    if not is_shared(key):
        return person
    parts = ("group", key.platform, key.chat, key.thread or "")
    # An id may have a colon in it, and must not read like a chat and its thread.
    return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts if part)


def words_of(update: Update, key: SessionKey) -> str:
    """What the model reads; empty if nothing was said. Who wrote it is said only where several people do."""
    said = [_quoted(update), whole(update.text), *(_named(media) for media in update.media)]
    text = "\n".join(part for part in said if part)
    if not text.strip():
        return ""
    name = " ".join(whole(update.user_name).split())[:NAME_CHARS_MAX] or update.user
    return f"{name}: {text}" if is_shared(key) else text


def unpacked_words(text: str, packed: tuple[Media, ...], unpacked: tuple[Media, ...]) -> str:
    """What the model reads of a message once what came with it was fetched; empty if nothing is left of it."""
    said = text.removesuffix("\n".join(map(_named, packed)))
    named = "\n".join(map(_named, unpacked))
    if named:
        return f"{said}{named}" if said != text else f"{said}\n{named}"
    # Only what was written by somebody ends in a line of its own: else the name of who speaks is all there is.
    return said.removesuffix("\n") if said.endswith("\n") or said == text else ""


def _quoted(update: Update) -> str:
    if update.reply_to is None or not update.reply_to.text.strip():
        return ""
    return f"(In answer to {excerpt(whole(update.reply_to.text), _QUOTED_CHARS_MAX)})"


def _named(media: Media) -> str:
    about = ", ".join(
        part
        for part in (
            whole(media.name)[:NAME_CHARS_MAX],
            whole(media.mime)[:NAME_CHARS_MAX],
            _size(media.size) if media.size else "",
        )
        if part
    )
    if media.path and not media.handle:
        about = f"{about}; kept as {media.path}" if about else f"kept as {media.path}"
    if media.kind == "voice" and media.words:
        return f"[spoken] {whole(media.words)}"
    named = f"[{media.kind}{f': {about}' if about else ''}]"
    return f"{named}\n{whole(media.words)}" if media.words else named


def _size(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{max(size // 1000, 1)} kB"
