"""`everthread boundaries`."""

from __future__ import annotations

import re

import pytest
from tests.e2e.used_home import (
    UsedHome,
    everthread,
    printed,
)

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_boundaries_are_the_audit_trail_newest_first(lived: UsedHome) -> None:
    found = printed("boundaries", home=lived.home)
    assert [row["boundary"] for row in found if row["boundary"] != "suspend"] == ["new", "branch", "new"]
    branch = next(row for row in found if row["boundary"] == "branch")
    assert (branch["from"], branch["to"], branch["by"]) == (lived.lisbon, lived.branch, "user")
    assert branch["key"] == "agent:main:cli:dm:1"
    table = everthread("boundaries", home=lived.home).stdout
    assert re.search(rf"branch +{lived.lisbon} +{lived.branch} +user", table)
