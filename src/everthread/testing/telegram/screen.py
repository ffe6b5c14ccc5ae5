"""Text rendering of a chat: bubbles, formatting marks and buttons."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from everthread.testing.telegram.formatting import utf16_slice
from everthread.testing.telegram.objects import Chat, InlineKeyboardMarkup, Message, MessageEntity
from everthread.testing.telegram.protocol import ShownFile, ShownMessage

WIDTH = 72
_BUBBLE = 56

_MARKS = {
    "bold": ("**", "**"),
    "italic": ("_", "_"),
    "underline": ("__", "__"),
    "strikethrough": ("~~", "~~"),
    "spoiler": ("▒", "▒"),
    "code": ("`", "`"),
}


def shown_message(message: Message) -> ShownMessage:
    who = message.from_
    answered = message.reply_to_message
    return ShownMessage(
        message.chat.id,
        message.message_id,
        who.id if who else 0,
        who.first_name if who else "",
        message.is_by_bot,
        message.words,
        mark_text(message.words, message.marks),
        message.marks,
        message.message_thread_id if message.is_topic_message else None,
        answered.message_id if answered and answered.forum_topic_created is None else None,
        message.edit_date is not None,
        _buttons(message.reply_markup),
        _file(message),
    )


def mark_text(text: str, entities: Sequence[MessageEntity]) -> str:
    """Mark the formatted parts of a text."""
    begins: dict[int, list[str]] = {}
    ends: dict[int, list[str]] = {}
    quoted = [(one.offset, one.end) for one in entities if one.type.endswith("blockquote")]
    for entity in sorted(entities, key=lambda one: (one.offset, -one.length)):
        before, after = _marks(entity, is_line_over=utf16_slice(text, entity.end - 1, 1) == "\n")
        begins.setdefault(entity.offset, []).append(before)
        ends.setdefault(entity.end, []).insert(0, after)
    pieces: list[str] = []
    at, is_line_start = 0, True
    for char in text:
        pieces += ends.pop(at, ())
        if is_line_start and any(begin <= at < end for begin, end in quoted):
            pieces.append("▌ ")
        pieces += begins.pop(at, ())
        pieces.append(char)
        is_line_start = char == "\n"
        at += 2 if ord(char) > 0xFFFF else 1
    return "".join([*pieces, *ends.pop(at, ())])


def _marks(entity: MessageEntity, is_line_over: bool) -> tuple[str, str]:
    match entity.type:
        case "pre":
            return f"```{entity.language or ''}\n", "```" if is_line_over else "\n```"
        case "text_link":
            return "[", f"]({entity.url})"
        case kind:
            return _MARKS.get(kind, ("", ""))


def draw_chat(chat: Chat, messages: Iterable[Message]) -> str:
    """Draw messages of users on the right and the bot's on the left."""
    title = chat.title or chat.first_name or str(chat.id)
    lines = [f"── {title} ".ljust(WIDTH, "─")]
    for message in messages:
        lines += ["", *_bubble(message, chat)]
    return "\n".join(lines) + "\n"


def _bubble(message: Message, chat: Chat) -> list[str]:
    if message.forum_topic_created is not None:
        return [f"· topic “{message.forum_topic_created.name}” was created ·".center(WIDTH).rstrip()]
    inside = _inside(message)
    rows = _keyboard(message.reply_markup)
    width = max(text_width(line) for line in [*inside, *rows])
    box = [f"╭{'─' * (width + 2)}╮", *(f"│ {_padded(line, width)} │" for line in inside), f"╰{'─' * (width + 2)}╯"]
    box += [f"  {row}" for row in rows]
    if message.is_by_bot or chat.type != "private":
        box.insert(0, message.from_.first_name if message.from_ else "")
    if not message.is_by_bot:
        widest = max(text_width(line) for line in box)
        box = [" " * (WIDTH - widest) + line for line in box]
    return [line.rstrip() for line in box]


def _inside(message: Message) -> list[str]:
    lines: list[str] = []
    answered = message.reply_to_message
    if answered is not None and answered.forum_topic_created is None:
        words = " ".join((answered.words or "…").split())
        name = answered.from_.first_name if answered.from_ else ""
        lines.append(f"┃ {name}: {words}"[:_BUBBLE])
    file = _file(message)
    if file is not None:
        lines.append(f"[{file.kind}{f' {file.name}' if file.name else ''}, {file.size} bytes]")
    for line in mark_text(message.words, message.marks).split("\n") if message.words else ():
        lines += _wrapped(line)
    if message.edit_date is not None:
        lines.append("(edited)")
    return lines or [""]


def _keyboard(markup: InlineKeyboardMarkup | None) -> list[str]:
    return [" ".join(f"[ {text} ]" for text, _ in row) for row in _buttons(markup)]


def _buttons(markup: InlineKeyboardMarkup | None) -> tuple[tuple[tuple[str, str], ...], ...]:
    rows = markup.inline_keyboard if markup else ()
    return tuple(tuple((one.text, one.callback_data or one.url or "") for one in row) for row in rows)


def _file(message: Message) -> ShownFile | None:
    if message.photo:
        return ShownFile("photo", message.photo[-1].file_id, message.photo[-1].file_size)
    if message.document is not None:
        file = message.document
        return ShownFile("document", file.file_id, file.file_size, file.file_name or "", file.mime_type or "")
    if message.voice is not None:
        return ShownFile("voice", message.voice.file_id, message.voice.file_size, "", message.voice.mime_type or "")
    return None


def _wrapped(line: str) -> list[str]:
    """Wrap a line to the width of a bubble, between words if possible."""
    lines = [""]
    for number, word in enumerate(line.split(" ")):
        # Leading spaces are kept: the line may be code.
        longer = f"{lines[-1]} {word}" if lines[-1] or (number and len(lines) == 1) else word
        if text_width(longer) <= _BUBBLE:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        while text_width(word) > _BUBBLE:
            cut = next(n for n in range(len(word), 0, -1) if text_width(word[:n]) <= _BUBBLE)
            lines[-1], word = word[:cut], word[cut:]
            lines.append("")
        lines[-1] = word
    return lines


def text_width(text: str) -> int:
    """Width of a text in columns, with wide characters counted as two."""
    return sum(
        0 if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn") else 2 if _is_wide(char) else 1
        for char in text
    )


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))
