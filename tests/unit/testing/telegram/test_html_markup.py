"""HTML: shown text, entities and errors."""

import pytest

from everthread.testing.telegram.errors import ApiError
from everthread.testing.telegram.formatting import format_text, utf16_slice


def read(text: str, mode: str | None) -> tuple[str, list[tuple[str, str]]]:
    """The text, and of each entity its kind and the words it is about."""
    shown, entities = format_text(text, mode)
    return shown, [(one.type, utf16_slice(shown, one.offset, one.length)) for one in entities]


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
