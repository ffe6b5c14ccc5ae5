"""Tools with one text argument."""

import pytest

from everthread.adapters.memory.common.tools import TextTool, TextTools, bullet_list
from everthread.domain.errors import ToolFailed

TOOLS = TextTools("diary", [TextTool("search", "Search.", "query"), TextTool("profile", "Facts.")], chars_max=5)


def test_a_schema_names_the_argument_if_there_is_one() -> None:
    search, profile = TOOLS.schemas
    assert (search["name"], search["parameters"]["required"]) == ("search", ["query"])
    assert profile["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_the_argument_is_trimmed_and_cut() -> None:
    assert TOOLS.argument("search", {"query": "  bees and honey"}) == "bees "
    assert TOOLS.argument("profile", {"query": "ignored"}) == ""


def test_an_empty_argument_and_an_unknown_tool_are_refused() -> None:
    with pytest.raises(ToolFailed, match="query is empty"):
        TOOLS.argument("search", {"query": " "})
    with pytest.raises(LookupError, match="diary has no tool 'other'"):
        TOOLS.argument("other", {})


def test_a_list_without_lines_says_so() -> None:
    assert bullet_list(["a", "b"]) == "- a\n- b"
    assert bullet_list([], "Nothing.") == "Nothing."
