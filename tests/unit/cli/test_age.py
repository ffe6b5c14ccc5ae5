"""Ages on the command line."""

import click
import pytest

from everthread.cli.age import Age


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12h", 43_200), ("90d", 7_776_000), ("2w", 1_209_600), ("6m", 15_552_000), ("1y", 31_536_000)],
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert Age().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0d", "90", "d", "-1d", "1.5d", "90D", "٣d", "1d1h", "9999999y"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="Write it like 90d"):
        Age().convert(text, None, None)


def test_an_age_can_have_a_limit() -> None:
    assert Age(10).convert("10y", None, None) == 315_360_000
    with pytest.raises(click.BadParameter, match="at most 10y"):
        Age(10).convert("11y", None, None)
