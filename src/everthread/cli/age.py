"""Ages and lifetimes on the command line, such as 90d."""

from __future__ import annotations

import re

import click

_UNIT_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_AGE = re.compile(r"([0-9]{1,6})([hdwmy])")


class Age(click.ParamType[float]):
    """An option in hours, days, weeks, months of 30 days or years; its value is in seconds."""

    name = "age"

    def __init__(self, years_max: int | None = None) -> None:
        self._years_max = years_max

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _AGE.fullmatch(str(value))
        seconds = float(int(match[1]) * _UNIT_S[match[2]]) if match is not None else 0.0
        if not seconds:
            self.fail(f"Invalid age {str(value)[:40]!r}. Write it like 90d, 12h, 2w, 6m or 1y")
        if self._years_max is not None and seconds > self._years_max * _UNIT_S["y"]:
            self.fail(f"{str(value)[:40]!r} is too long. Give at most {self._years_max}y")
        return seconds
