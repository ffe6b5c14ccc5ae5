"""Schemas of tools and the validation of their arguments."""

from __future__ import annotations

import msgspec
import pytest

from everthread.agent.tools.arguments import TEXT, parse_arguments, text, tool_schema
from everthread.domain.errors import ToolFailed

TEA = tool_schema(
    "tea", "Make tea.", {"kind": {**TEXT, "enum": ["green", "black"]}, "cup": text("Its name.")}, ["kind"]
)


class Tea(msgspec.Struct):
    kind: str
    cup: str = "mug"


def test_a_schema_keeps_the_order_of_its_keys_and_accepts_no_others() -> None:
    assert list(TEA.parameters) == ["type", "properties", "required", "additionalProperties"]
    assert TEA.parameters["additionalProperties"] is False
    assert "required" not in tool_schema("none", "Nothing.", {}).parameters


def test_valid_arguments_become_the_wanted_type() -> None:
    assert parse_arguments(TEA, {"kind": "green"}, Tea) == Tea("green")


def test_an_error_names_the_tool_and_the_expected_arguments() -> None:
    with pytest.raises(ToolFailed, match=r"^tea: .*`kind` \(green \| black\), `cup` \(string, optional\)$"):
        parse_arguments(TEA, {"kind": 1}, Tea)
