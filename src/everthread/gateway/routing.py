"""Route a message: its session key, its owner, and the text that the model reads. Pure."""

from __future__ import annotations

from everthread.config.schema import PlatformAccount
from everthread.domain.model import ChatType, SessionKey, replace_surrogates
from everthread.domain.recall_scope import group_owner
from everthread.domain.text_format import quote_start
from everthread.ports.platform import Media, Update

NAME_CHARS_MAX = 80
_QUOTED_CHARS_MAX = 300


def key_of(update: Update, profile: str, account: PlatformAccount) -> SessionKey:
    """Derive the session key of an update. The account decides whether the members of a group share one session."""
    sharing = account.threads if update.chat_type is ChatType.THREAD else account.groups
    user = None if update.chat_type is ChatType.DM or sharing == "shared" else update.user
    return SessionKey(profile, update.platform, update.chat_type, update.chat, update.thread or None, user)


def is_shared(key: SessionKey) -> bool:
    """Return true if several people share one session at this key."""
    return key.chat_type is not ChatType.DM and key.user is None


def owner_of(key: SessionKey, person: str) -> str:
    """Return the owner of the session: the person, or the group that shares it."""
    return group_owner(key) if is_shared(key) else person


def message_text(update: Update, key: SessionKey) -> str:
    """Return the text that the model reads; empty for an empty message. In a shared session it names the sender."""
    parts = [_quote(update), replace_surrogates(update.text), *(_describe(media) for media in update.media)]
    text = "\n".join(part for part in parts if part)
    if not text.strip():
        return ""
    name = " ".join(replace_surrogates(update.user_name).split())[:NAME_CHARS_MAX] or update.user
    return f"{name}: {text}" if is_shared(key) else text


def text_with_attachments(text: str, pending: tuple[Media, ...], fetched: tuple[Media, ...]) -> str:
    """Replace the pending attachments in a message's text by the fetched ones; empty if nothing is left."""
    written = text.removesuffix("\n".join(map(_describe, pending)))
    described = "\n".join(map(_describe, fetched))
    if described:
        return f"{written}{described}" if written != text else f"{written}\n{described}"
    # A written text ends in a line break before the attachments; without one, only the sender's name is left.
    return written.removesuffix("\n") if written.endswith("\n") or written == text else ""


def _quote(update: Update) -> str:
    if update.reply_to is None or not update.reply_to.text.strip():
        return ""
    return f"(In reply to {quote_start(replace_surrogates(update.reply_to.text), _QUOTED_CHARS_MAX)})"


def _describe(media: Media) -> str:
    if media.kind == "voice" and media.words:
        return f"[spoken] {replace_surrogates(media.words)}"
    size = _size(media.size) if media.size else ""
    about = ", ".join(
        filter(
            None,
            (replace_surrogates(media.name)[:NAME_CHARS_MAX], replace_surrogates(media.mime)[:NAME_CHARS_MAX], size),
        )
    )
    kept = f"stored as {media.path}" if media.path and not media.handle else ""
    details = "; ".join(filter(None, (about, kept)))
    named = f"[{media.kind}{f': {details}' if details else ''}]"
    return f"{named}\n{replace_surrogates(media.words)}" if media.words else named


def _size(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{max(size // 1000, 1)} kB"
