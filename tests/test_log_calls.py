"""Logging calls pass exceptions, `Private` texts, numbers and names of the program, never other text.

`log_format` replaces exceptions and `Private` texts by references. It can't tell a name from text that quotes a person,
so this test checks every argument that is formatted with `%s`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "everthread"
# The plugin host is a program of its own, whose parent reads its output.
EXEMPT = {"adapters/memory/hermes_bridge/plugin_host.py"}
MODULES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
    if not path.relative_to(SOURCE).as_posix().startswith("testing/")
}
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}

NAMES = {
    # Names from the settings, of adapters, hooks, commands and tools.
    *"platform.name platform moved.platform update.platform row.platform reply.key.platform self._name name".split(),
    *"provider caller.name hook hook.call.hook call.name found.command.name entry.name lane.name self._source".split(),
    # Ids and keys that the program or a platform assigned.
    *"lane.key key turn.claim.turn_id claim.turn_id ref.session_id event.ref.session_id session session_id".split(),
    *"source.ref.session_id entered.session_id pending.delivery.key lease.name schedule.id time.schedule_id".split(),
    *"review.window.mark reference".split(),
    # Fixed texts and values.
    *"what outcome state.value crossing.kind verb wait.what type(error).__name__".split(),
    # Paths of the store and the home.
    *"self._path target lock".split(),
}
"""Expressions that hold no words of a person, wherever they are used."""

JUSTIFIED = {
    ("gateway/inbound.py", "problem"): "the type of the error",
    ("plugins.py", "problem"): "a Private",
    ("lifecycle/local_token.py", "LOCAL"): "a fixed name",
    ("web/auth_failures.py", "address"): "the parsed IP address of a client",
    ("web/auth_failures.py", "reason"): "one of a few fixed texts",
    ("cli/commands/gateway/run.py", "', '.join([*gateway.platforms, *(['http'] if web else [])]) or 'nothing'"): (
        "names of platforms"
    ),
    ("adapters/sqlite/sentinel.py", "error.strerror or 'another process holds it'"): "text of the operating system",
    ("gateway/attachments.py", "error.strerror"): "text of the operating system",
}
"""Expressions that are safe in one module, and why."""

PLACEHOLDER = re.compile(r"%[-#0+ ]*\d*(?:\.\d+)?([a-z%])")


def logging_calls() -> Iterator[tuple[str, ast.Call, set[str]]]:
    """Yield the module, the call and the names of the exceptions that are handled around it."""
    for module, tree in MODULES.items():
        if module not in EXEMPT:
            yield from ((module, call, caught) for call, caught in _calls(tree, set()))


def _calls(node: ast.AST, caught: set[str]) -> Iterator[tuple[ast.Call, set[str]]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        caught = caught | _exceptions_of(node)
    if isinstance(node, ast.ExceptHandler) and node.name:
        caught = caught | {node.name}
    if isinstance(node, ast.Call) and _name_of(node) in {*METHODS, "log_info"}:
        function = ast.unparse(node.func)
        if re.fullmatch(rf"(self\.)?_?(log|logger)\.({'|'.join(METHODS)})", function) or function == "log_info":
            yield node, caught
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, caught)


def _name_of(call: ast.Call) -> str:
    """Return the last part of the name of a function that is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _exceptions_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return parameters that are exceptions or `Private`, and variables with the exception of a task."""
    kinds = re.compile(r"\w*(Error|Exception|BadConfig|Private)( \| None)?")
    parameters = [each for each in function.args.args if each.annotation]
    given = {each.arg for each in parameters if each.annotation and kinds.fullmatch(ast.unparse(each.annotation))}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.NamedExpr) and ast.unparse(node.value).endswith(".exception()"):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            given.add(ast.unparse(target))
    return given


def offences(module: str, call: ast.Call, caught: set[str]) -> Iterator[str]:
    arguments = call.args[1:] if ast.unparse(call.func) == "log_info" else call.args
    template, *values = arguments
    if isinstance(template, ast.JoinedStr):
        values = [each.value for each in template.values if isinstance(each, ast.FormattedValue)]
        kinds = ["s"] * len(values)
    elif isinstance(template, ast.Constant) and isinstance(template.value, str):
        kinds = [kind for kind in PLACEHOLDER.findall(template.value) if kind != "%"]
    elif ast.unparse(call.func) == "log_info":
        return
    else:
        yield ast.unparse(template)
        return
    if any(each.arg == "stack_info" for each in call.keywords):
        yield "stack_info"
    if ast.unparse(call.func) == "log_info":
        values = [
            each for each in values if not isinstance(each, ast.Dict | ast.Name) or isinstance(template, ast.JoinedStr)
        ]
    for kind, value in zip(kinds, values, strict=True):
        text = ast.unparse(value)
        is_private = isinstance(value, ast.Call) and text.startswith("Private(")
        is_error = isinstance(value, ast.Name) and value.id in caught
        if kind in "rs" and not (is_private or is_error or text in NAMES or (module, text) in JUSTIFIED):
            yield text


def test_no_logging_call_passes_text_that_may_quote_a_person() -> None:
    found = [
        f"{module}:{call.lineno}: {text}; pass the exception itself, or wrap foreign text in Private"
        for module, call, caught in logging_calls()
        for text in offences(module, call, caught)
    ]
    assert found == []


def test_every_justification_is_used() -> None:
    used = {(module, ast.unparse(value)) for module, call, _ in logging_calls() for value in call.args[1:]}
    assert set(JUSTIFIED) - used == set()


@pytest.mark.parametrize(
    "code",
    [
        "log.warning('%s', str(error))",
        "log.warning(f'{error}')",
        "log.info('%s: %s', name, why)",
        "log.error(text)",
        "self._log.warning('%d %s', 3, text)",
    ],
)
def test_a_call_with_other_text_is_found(code: str) -> None:
    [(call, caught)] = list(_calls(ast.parse(code), set()))
    assert list(offences("any.py", call, caught))


def test_errors_that_are_logged_whole_are_made_of_names_and_fixed_texts() -> None:
    """Classes that declare `log_safe` are raised with literals, paths, counts and texts of the operating system."""
    safe = {
        node.name
        for node in ast.walk(MODULES["domain/errors.py"])
        if isinstance(node, ast.ClassDef) and any("log_safe" in ast.unparse(each) for each in node.body)
    } - {"EverthreadError"}
    assert safe >= {"StoreBusy", "Fenced"}
    found: list[str] = []
    for module, tree in MODULES.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for argument in [a for c in calls if _name_of(c) in safe for a in c.args]:
            if isinstance(argument, ast.JoinedStr):
                parts = [ast.unparse(each.value) for each in argument.values if isinstance(each, ast.FormattedValue)]
            else:
                parts = [] if isinstance(argument, ast.Constant) else [ast.unparse(argument)]
            found += [f"{module}: {part}" for part in parts if part not in PARTS]
    assert found == []


PARTS = {
    # Paths, files of an archive, and what the operating system says about them.
    *"path self.path path.name target folder folder.parent file home aside archive.name".split(),
    *("home / FILE", "error.strerror", "error.strerror or error", "error", "worse", "problem"),
    # Numbers.
    *("free / 1000000.0", "wanted / 1000000.0", "megabytes(free)", "megabytes(needed)"),
    *("max(applied)", "newest", "schema"),
    # Ids, names of leases, programs and components.
    *("claim.turn_id", "lease.name", "review.window.label", "manifest.program[:40]", "what", "self._describe_lock()"),
}
