"""MarkdownV2 and legacy Markdown: shown text, entities and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.telegram.errors import ApiError
from everthread.testing.telegram.formatting import format_text, utf16_slice

RESERVED = r"_*[]()~`>#+-=|{}.!"


def read(text: str, mode: str | None) -> tuple[str, list[tuple[str, str]]]:
    """The text, and of each entity its kind and the words it is about."""
    shown, entities = format_text(text, mode)
    return shown, [(one.type, utf16_slice(shown, one.offset, one.length)) for one in entities]


@pytest.mark.parametrize(
    ("text", "shown", "entities"),
    [
        ("*b* _i_ __u__ ~s~ ||p|| `c`", "b i u s p c", "bold:b italic:i underline:u strikethrough:s spoiler:p code:c"),
        (r"\*no\* \_mark\_ \.", "*no* _mark_ .", ""),
        ("*b _bi_ b*", "b bi b", "bold:b bi b|italic:bi"),
        ("*😀😀* _x_", "😀😀 x", "bold:😀😀|italic:x"),
        ("*a `c` b*", "a c b", "bold:a |code:c|bold: b"),
        ("___both_ u__", "both u", "underline:both u|italic:both"),
        ("_i __both_\r__ x", None, "Can't find end of Underline entity at byte offset 11"),
        ("__u _both_\r__", "u both", "underline:u both|italic:both"),
        ("`a\\`b`", "a`b", "code:a`b"),
        ("`a.b!c`", "a.b!c", "code:a.b!c"),
        ("```\nplain. text!\n```", "plain. text!", "pre:plain. text!"),
        ("```py\nx = 1\n```", "x = 1", "pre:x = 1"),
        ("[t](http://example.org/a\\)b)", "t", "text_link:t"),
        ("[t](no link)", "t", ""),
        ("[example\\.org]", "example.org", "text_link:example.org"),
        (">one\n>two\nafter", "one\ntwo\nafter", "blockquote:one\ntwo\n"),
        (">one *b* x", "one b x", "blockquote:one b x|bold:b"),
        ("**>one\n>two||", "one\ntwo", "expandable_blockquote:one\ntwo"),
        (">one\n**>two", "one\ntwo", "blockquote:one\n|blockquote:two"),
        ("![👍](tg://emoji?id=5368324170671202286)", "👍", "custom_emoji:👍"),
        ("**", "", ""),
        ("  *x*  ", "x", "bold:x"),
        ("a. b", None, "Character '.' is reserved and must be escaped with the preceding '\\'"),
        ("a > b", None, "Character '>' is reserved and must be escaped with the preceding '\\'"),
        ("a | b", None, "Character '|' is reserved and must be escaped with the preceding '\\'"),
        ("5!", None, "Character '!' is reserved and must be escaped with the preceding '\\'"),
        ("*x", None, "Can't find end of Bold entity at byte offset 0"),
        ("é _x", None, "Can't find end of Italic entity at byte offset 3"),
        ("😀 __x", None, "Can't find end of Underline entity at byte offset 5"),
        ("a `x", None, "Can't find end of Code entity at byte offset 2"),
        ("```x", None, "Can't find end of Pre entity at byte offset 0"),
        ("```py\nx", None, "Can't find end of PreCode entity at byte offset 0"),
        ("||x", None, "Can't find end of Spoiler entity at byte offset 0"),
        ("~x", None, "Can't find end of Strikethrough entity at byte offset 0"),
        ("[x", None, "Can't find end of TextUrl entity at byte offset 0"),
        ("[x](http://a.b", None, "Can't find end of a URL at byte offset 4"),
        (">a *b\nc*", None, "Can't find end of Bold entity at byte offset 3"),
        ("*a _b*", None, "Can't find end of Bold entity at byte offset 5"),
    ],
)
def test_markdown_v2(text: str, shown: str | None, entities: str) -> None:
    check(text, "MarkdownV2", shown, entities)


@pytest.mark.parametrize(
    ("text", "shown", "entities"),
    [
        ("*b* _i_ `c` [t](http://example.org)", "b i c t", "bold:b italic:i code:c text_link:t"),
        ("```py\nx```", "x", "pre:x"),
        (r"a\_b . ! -", "a_b . ! -", ""),
        ("snake_case", None, "Can't find end of the entity starting at byte offset 5"),
    ],
)
def test_legacy_markdown(text: str, shown: str | None, entities: str) -> None:
    check(text, "Markdown", shown, entities)


def check(text: str, mode: str, shown: str | None, entities: str) -> None:
    if shown is None:
        with pytest.raises(ApiError) as caught:
            format_text(text, mode)
        assert caught.value.description == f"Bad Request: can't parse entities: {entities}"
        return
    separator = "|" if "|" in entities or "\n" in entities else " "
    if ":" in entities and separator == " " and entities.count(":") == 1:
        separator = "|"
    assert read(text, mode) == (shown, [tuple(one.split(":", 1)) for one in entities.split(separator) if one])


@given(st.text())
def test_escaped_text_is_shown_unchanged(text: str) -> None:
    escaped = "".join(f"\\{char}" if char in RESERVED or char == "\\" else char for char in text)
    assert format_text(escaped, "MarkdownV2")[0] == text.replace("\r", "").strip()
