"""Compare the paths of a message and of a boundary in `docs/architecture.md` with the calls of the program."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from tests.telegram_gateway import telegram_gateway

import everthread
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider

ROOT = Path(__file__).parents[2]
SOURCE = Path(everthread.__file__).parent
PAGE = ROOT / "docs" / "architecture.md"
MESSAGE_FILES_MAX = 9
BOUNDARY_FILES_MAX = 4


class Step(NamedTuple):
    """One row of a path: a function, its file, and how it is reached from the row before it."""

    file: str
    function: str
    reached_by: str


Name = tuple[str, str]


def path_of(heading: str) -> list[Step]:
    """Read the table below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| (call|task|row|transaction)\b", section, re.MULTILINE)
    return [Step(*row) for row in rows]


def functions_in(file: Path) -> set[str]:
    """Return the qualified names of the functions and methods that a file defines."""
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)

    walk(ast.parse(file.read_text()), "")
    return found


class Trace:
    """Record of the first call of each function, in order, with the functions that called it directly."""

    def __init__(self) -> None:
        self.order: dict[Name, int] = {}
        self.callers: dict[Name, set[Name]] = {}

    def add(self, name: Name, caller: Name | None) -> None:
        self.order.setdefault(name, len(self.order))
        if caller is not None and caller != name:
            self.callers.setdefault(name, set()).add(caller)


class Tracer:
    """Profile this thread and every thread that starts within the block, and record while `trace` is set."""

    def __init__(self) -> None:
        self.trace: Trace | None = None

    def __enter__(self) -> Tracer:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] - documented to switch profiling off

    @contextmanager
    def recording(self) -> Iterator[Trace]:
        self.trace = trace = Trace()
        try:
            yield trace
        finally:
            self.trace = None

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.trace is None or event != "call" or (name := _name(frame)) is None:
            return
        caller = frame.f_back
        while caller is not None and _name(caller) is None:
            caller = caller.f_back
        self.trace.add(name, _name(caller) if caller is not None else None)


def _name(frame: FrameType) -> Name | None:
    """Return the file and function of a frame of ours; a closure counts as the function that defines it."""
    file = Path(frame.f_code.co_filename)
    if SOURCE not in file.parents or SOURCE / "testing" in file.parents:
        return None
    return file.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname.split(".<locals>")[0]


def check(steps: list[Step], trace: Trace) -> None:
    """Check that each step was called, by the step before it where the page says so, and in this order."""
    assert len(steps) > 2, "the page has no table of steps"
    for step in steps:
        assert step.function in functions_in(SOURCE / step.file), f"{step.file} does not define {step.function}"
        assert (step.file, step.function) in trace.order, f"{step.function} was not called"
    for before, step in zip(steps, steps[1:], strict=False):
        name, previous = (step.file, step.function), (before.file, before.function)
        if step.reached_by == "call":
            assert previous in trace.callers[name], f"{step.function} is called by {trace.callers[name]}"
        else:
            assert trace.order[previous] < trace.order[name], f"{step.function} runs before {before.function}"


@pytest.mark.parametrize(
    ("heading", "first", "last", "files_max"),
    [
        ("The path of a message", "adapters/platforms/telegram/", "adapters/sqlite/store.py", MESSAGE_FILES_MAX),
        ("The path of a boundary", "lifecycle/", "ports/memory.py", BOUNDARY_FILES_MAX),
    ],
)
def test_a_path_is_short_and_complete(heading: str, first: str, last: str, files_max: int) -> None:
    steps = path_of(heading)
    assert steps[0].file.startswith(first)
    assert steps[-1].file == last
    # The file that ends the path calls no further step.
    assert len({step.file for step in steps[:-1]}) <= files_max


async def test_a_message_and_a_new_session_take_the_paths_of_the_page(tmp_path: Path) -> None:
    with Tracer() as tracer:
        async with (
            ModelServer([Say("Hello."), Say("A title")]) as model,
            telegram_gateway(tmp_path, model, providers=[RecordingProvider("recorder")]) as gateway,
        ):
            with tracer.recording() as message:
                assert await gateway.hear("Hello") == ["Hello."]
            with tracer.recording() as boundary:
                await gateway.hear("/new")
                assert await gateway.runtime.drain(8.0)
    check(path_of("The path of a message"), message)
    check(path_of("The path of a boundary"), boundary)
