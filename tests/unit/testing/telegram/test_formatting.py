"""Marked-up texts as the emulated Telegram reads them: what is shown, which entities there are, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.telegram.entities import link_target, utf16_len
from everthread.testing.telegram.errors import ApiError
from everthread.testing.telegram.formatting import format_text, utf16_slice
from everthread.testing.telegram.screen import mark_text

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
        ("<b>b</b> <strong>b</strong> <i>i</i> <em>i</em>", "b b i i", "bold:b bold:b italic:i italic:i"),
        (
            "<u>u</u> <ins>u</ins> <s>s</s> <del>s</del>",
            "u u s s",
            "underline:u underline:u strikethrough:s strikethrough:s",
        ),
        ("<tg-spoiler>x</tg-spoiler> <span class='tg-spoiler'>y</span>", "x y", "spoiler:x spoiler:y"),
        ("<b>a <i>b</i></b>", "a b", "bold:a b|italic:b"),
        ("1 &lt; 2 &amp;&amp; 3 &gt; &quot;x&quot; &#8364; &#x20ac; &nbsp;", '1 < 2 && 3 > "x" € € &nbsp;', ""),
        ('<a href="http://example.org/?a=1&amp;b=2">t</a>', "t", "text_link:t"),
        ('<pre><code class="language-py">x = 1</code></pre>', "x = 1", "pre:x = 1"),
        ("<code>a &lt; b</code>", "a < b", "code:a < b"),
        ("<blockquote expandable>q</blockquote>", "q", "expandable_blockquote:q"),
        ("<B>x</B>", "x", "bold:x"),
        ("<b>x</>", "x", "bold:x"),
        ("<b>x", None, 'Can\'t find end tag corresponding to start tag "b"'),
        ("é <p>x</p>", None, 'Unsupported start tag "p" at byte offset 3'),
        ("1 < 2", None, 'Unsupported start tag "" at byte offset 2'),
        ("x</b>", None, "Unexpected end tag at byte offset 1"),
        ("<b>x</i>", None, 'Unmatched end tag at byte offset 4, expected "</b>", found "</i>"'),
        ("<b>x</b", None, "Unclosed end tag at byte offset 4"),
        ("<b x", None, "Unclosed start tag at byte offset 0"),
        ("<a href=a/b>x</a>", None, "Unexpected end of name token at byte offset 8"),
        ("<span>x</span>", None, 'Tag "span" must have class "tg-spoiler" at byte offset 0'),
    ],
)
def test_html(text: str, shown: str | None, entities: str) -> None:
    check(text, "HTML", shown, entities)


@pytest.mark.parametrize(
    ("text", "shown", "entities"),
    [
        ("*b* _i_ `c` [t](http://example.org)", "b i c t", "bold:b italic:i code:c text_link:t"),
        ("```py\nx```", "x", "pre:x"),
        (r"a\_b . ! -", "a_b . ! -", ""),
        ("snake_case", None, "Can't find end of the entity starting at byte offset 5"),
    ],
)
def test_the_first_markdown(text: str, shown: str | None, entities: str) -> None:
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


def test_what_anybody_finds_in_a_text() -> None:
    text = "/start@my_bot 😀 @ann_example, mail a@b.org see https://example.org/x?y=1 or example.com #tag1 not/this"
    assert read(text, None) == (
        text,
        [
            ("bot_command", "/start@my_bot"),
            ("mention", "@ann_example"),
            ("email", "a@b.org"),
            ("url", "https://example.org/x?y=1"),
            ("url", "example.com"),
            ("hashtag", "#tag1"),
        ],
    )
    assert read("`/start @ann_example`", "MarkdownV2")[1] == [("code", "/start @ann_example")]


def test_an_unknown_way_to_parse_is_refused() -> None:
    with pytest.raises(ApiError, match="unsupported parse_mode"):
        format_text("x", "BBCode")


@given(st.text())
def test_whatever_is_escaped_is_shown_as_it_is(text: str) -> None:
    escaped = "".join(f"\\{char}" if char in RESERVED or char == "\\" else char for char in text)
    assert format_text(escaped, "MarkdownV2")[0] == text.replace("\r", "").strip()


@given(st.text(alphabet=RESERVED + "\\ab \n😀é", max_size=30), st.sampled_from(["MarkdownV2", "HTML", "Markdown"]))
def test_any_text_is_either_read_or_refused_and_entities_stay_within_it(text: str, mode: str) -> None:
    try:
        shown, entities = format_text(text, mode)
    except ApiError:
        return
    assert all(0 <= one.offset < one.end <= utf16_len(shown) for one in entities)
    mark_text(shown, entities)


def test_links_are_kept_in_one_form() -> None:
    assert link_target("example.org") == "http://example.org/"
    assert link_target("HTTPS://Example.org/Path") == "https://example.org/Path"
    assert link_target("tg://user?id=7") == "tg://user?id=7"
    assert link_target("localhost") is None
    assert link_target("two words") is None
