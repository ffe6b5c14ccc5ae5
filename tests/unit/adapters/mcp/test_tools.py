"""Unique tool names for the model."""

import pytest

from everthread.adapters.mcp.tools import NAME_CHARS_MAX, exposed_names

LONG = "x" * 200


def test_a_tool_is_named_after_its_server_and_itself() -> None:
    assert exposed_names([("files", "read_file")]) == {("files", "read_file"): "mcp__files__read_file"}


def test_a_name_is_reduced_to_allowed_characters() -> None:
    assert exposed_names([("my files", "städte/suche")]) == {
        ("my files", "städte/suche"): "mcp__my_files__st_dte_suche"
    }


@pytest.mark.parametrize(
    "tools",
    [
        [("a", "x.y"), ("a", "x/y"), ("a", "x y")],
        [("a__b", "c"), ("a", "b__c")],
        [("a", LONG + "1"), ("a", LONG + "2"), (LONG, "a")],
    ],
)
def test_names_are_unique_short_and_stable(tools: list[tuple[str, str]]) -> None:
    names = exposed_names(tools)
    assert len(set(names.values())) == len(tools)
    assert all(len(name) <= NAME_CHARS_MAX for name in names.values())
    assert names == exposed_names(tools)


def test_an_ambiguous_name_is_never_used() -> None:
    one, other = ("a", "b__c"), ("a__b", "c")
    alone = {exposed_names([tool])[tool] for tool in (one, other)}
    assert len(alone) == 1
    for order in ([one, other], [other, one]):
        assert alone.isdisjoint(exposed_names(order).values())


def test_a_tool_that_imitates_a_generated_name_gets_a_unique_one() -> None:
    one, other = ("a", "b__c"), ("a__b", "c")
    mimic = ("a", exposed_names([one, other])[other].removeprefix("mcp__a__"))
    names = exposed_names([mimic, one, other])
    assert len(set(names.values())) == 3
    assert names[other] == exposed_names([one, other])[other]


def test_a_tool_can_not_take_the_names_of_another_server_even_if_that_is_unavailable() -> None:
    servers = ("a", "a__b", "my files", "my_files")
    names = exposed_names([("a", "b__c"), ("a", "d"), ("a__b", "d"), ("my files", "x"), ("my_files", "y")], servers)
    assert names["a", "d"] == "mcp__a__d"
    assert names["a__b", "d"] == "mcp__a__b__d"
    for tool, shared in ((("a", "b__c"), "mcp__a__b__"), (("my files", "x"), "mcp__my_files__x")):
        assert names[tool].startswith(shared)
        assert names[tool] not in ("mcp__a__b__c", "mcp__my_files__x")
