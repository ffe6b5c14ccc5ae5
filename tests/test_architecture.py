"""Rules that no linter checks: write access to tables, SQL statements and table definitions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "everthread"
MODULES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
# The testing package may use everything, and adapters and the store implement the tables.
PRODUCT = {name: tree for name, tree in MODULES.items() if not name.startswith("testing/")}
CALLERS = {name: tree for name, tree in PRODUCT.items() if not name.startswith(("adapters/", "store/"))}

# Read methods of each table group. All others are writes.
READS = {
    "sessions": "ref at get tip titled named matching recent conversations page of_owner descendants binding keys_on "
    "boundary boundaries is_served served chosen_model chosen_models keys_of newest_activity has_key",
    "turns": "view last_visible view_with_set_aside count get own_turns number user_messages size segments prefix "
    "prefix_number said_in has_other_chat",
    "search": "is_indexed search recall has_other_conversations find_damage count",
    "slots": "held_by get live of_session delegated orphans tools",
    "log": "entry after of_kind last_close event is_light is_hidden end",
    "archive": "has_undelivered ended_before children holds_the_newest",
    "cursors": "provider providers get due_sessions next_due redeliveries parked count backfill_candidates copying",
}
WRITERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sessions", "turns", "search", "slots", "log", "archive"), ("lifecycle/",)),
    "cursors": ("memory/delivery.py", "memory/delivery_results.py"),
}

# Variables with parts of statements, composed from constants only.
SQL_PARTS = {
    "condition",
    "values",
    "columns",
    "table",
    "column",
    "found",
    "shown",
    "some",
    "whose",
    "indexed",
    "concerns",
    "clauses",
    "pragma",
    "placeholders",
}
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|PRAGMA|WHERE|VALUES|FROM)\b")
# Specific to SQLite. `user` is a reserved word in other engines and must be quoted.
FTS5 = {"rowid", "bm25(", "MATCH", "total_changes("}
NOT_PORTABLE = re.compile(
    r"changes\(|total_changes\(|last_insert_rowid|INSERT OR|REPLACE INTO|rowid|MATCH|bm25\(|fts5|(?i:pragma)"
    r"|group_concat|instr\(|char\(|GLOB|sqlite_|\?\d|WHERE 1\b|\bIS (NOT )?\?|AUTOINCREMENT|strftime|json_"
    r"|(?<!\")\buser\b(?!['\"])"
)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")

OWNED = """sessions summaries bindings boundaries turns messages prefixes slots tool_rows inbox replies spend log notes
    note_versions projections tombstones chosen_models guests tokens schedules occurrences reply_files
    failed_updates error_details quota_counters""".split()
# Tables without user content: the rows they refer to have an owner, and strangers have none yet.
STRANGERS = "pairings wrong_codes".split()
UNOWNED = """serving hidden providers cursors redeliveries leases timers hook_calls incidents indexed reviews rests
    recalled discarded moved_chats database_id tokens_first tool_pins""".split()

CACHES = {"store/sql.py": {"_KEYS"}}
CURRENT = re.compile(r"_?(current_?)?(session|session_id|session_key|ref|epoch|generation)")
# A recall uses one ref from start to end.
KEEPS_A_REF = {"memory/recall.py"}


def methods(part: str) -> set[str]:
    """Methods of a table class, by the attribute of `UnitOfWork` that holds it."""
    [kind] = [
        node.value.func.id
        for node in ast.walk(MODULES["store/unit_of_work.py"])
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == f"self.{part}"
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
    ]
    modules = [tree for name, tree in MODULES.items() if name.startswith("store/")]
    [found] = [c for tree in modules for c in tree.body if isinstance(c, ast.ClassDef) and c.name == kind]
    named = {method.name for method in found.body if isinstance(method, ast.FunctionDef)}
    return {name for name in named if not name.startswith("_")}


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def adapters() -> list[str]:
    """Packages and modules that implement a port, without the modules they share."""
    kinds = ("lanes", "memory", "models", "platforms")
    found = [path for kind in kinds for path in (SOURCE / "adapters" / kind).iterdir()]
    shared = {"common", "http", "connection", "errors", "sse", "tool_call_validation"}
    names = [path.relative_to(SOURCE).with_suffix("").as_posix() for path in found]
    named = [name for name in names if name.rsplit("/", 1)[-1] not in shared and "__" not in name]
    return sorted([*named, "adapters/sqlite", "adapters/mcp", "adapters/transcription"])


@pytest.mark.parametrize("part", READS)
def test_sessions_turns_slots_and_logs_are_written_from_lifecycle_and_cursors_from_the_journal(part: str) -> None:
    reads = set(READS[part].split())
    assert reads <= methods(part), "unknown read method"
    writes = methods(part) - reads
    for name, tree in CALLERS.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == part:
                assert node.attr not in writes or name.startswith(WRITERS[part]), (
                    f"{name}:{node.lineno} {part}.{node.attr}"
                )


def test_sql_statements_are_built_from_constants_only() -> None:
    for name, tree in MODULES.items():
        for node in ast.walk(tree) if name.startswith(("store/", "adapters/sqlite/")) else ():
            for part in _put_in(node):
                unknown = {n for n in names(part) - SQL_PARTS if not CONSTANT.fullmatch(n)}
                assert not unknown, (
                    f"{name} puts {unknown} into {ast.unparse(node)}; use a parameter, or list a constant part"
                )


def test_the_stores_sql_is_portable() -> None:
    for name, tree in MODULES.items():
        if not name.startswith("store/"):
            continue
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        for node in texts:
            if isinstance(node.value, str) and len(node.value.split()) > 1:
                found = NOT_PORTABLE.search(node.value)
                known = name == "store/search_index.py" and found and found[0] in FTS5
                assert not found or known, f"{name}:{node.lineno} uses {found[0]!r}, which only SQLite knows"


def _put_in(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that are inserted into an SQL text."""
    texts = " ".join(
        n.value for n in ast.iter_child_nodes(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    if SQL.search(texts):
        match node:
            case ast.JoinedStr():
                yield from (value for value in node.values if isinstance(value, ast.FormattedValue))
            case ast.BinOp():
                yield from (node.left, node.right)
            case ast.Attribute(attr="format"):
                raise AssertionError(f"line {node.lineno} formats a statement; use parameters")


def test_no_module_has_mutable_state() -> None:
    for name, tree in PRODUCT.items():
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), name
        if name != "log_context.py":
            assert "ContextVar" not in names(tree), name
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_to_be_filled(node.value):
                variables = names(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                assert variables <= CACHES.get(name, set()), f"{name}: {variables}"


def test_only_the_log_file_reads_the_context_of_a_record() -> None:
    """The fields of the context label log lines. No decision may depend on them: identity is passed."""
    readers = {name for name, tree in MODULES.items() if "current_log_scope" in names(tree)}
    assert readers == {"log_file.py"}


def _is_to_be_filled(value: ast.AST | None) -> bool:
    return value is not None and ast.unparse(value) in ("{}", "[]", "None", "set()", "dict()", "list()")


def test_no_module_stores_the_current_session() -> None:
    for name, tree in CALLERS.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name not in KEEPS_A_REF:
                assert not CURRENT.fullmatch(node.attr), f"{name}:{node.lineno} keeps {node.attr}"


@pytest.mark.parametrize("adapter", adapters())
def test_every_adapter_has_a_contract_test(adapter: str) -> None:
    module = "everthread." + adapter.replace("/", ".")
    # Contract tests that need a real server are below tests/servers.
    folders = ("contract", "servers", "unit/adapters", "e2e/adapters")
    kits_of = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    for path in kits_of:
        tree = ast.parse(path.read_text())
        imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        kits = [base for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
        if any(name and (name == module or name.startswith(f"{module}.")) for name in imports) and any(
            name.endswith("Contract") for base in kits for name in names(base)
        ):
            return
    raise AssertionError(f"{module} has no contract test")


def test_only_tests_that_need_a_server_are_in_the_servers_folder() -> None:
    """`make test-servers` runs only that folder, and `make test` deselects marked tests."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        marks = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        marked = any(node.attr == "server" and ast.unparse(node.value) == "pytest.mark" for node in marks)
        assert marked == (path.parent == ROOT / "tests" / "servers"), path


def test_every_table_with_user_content_has_an_owner_column() -> None:
    scripts = "\n".join(path.read_text() for path in sorted(SOURCE.rglob("migrations/*.sql")))
    tables = dict(re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", scripts, re.DOTALL))
    assert sorted(tables) == sorted(OWNED + STRANGERS + UNOWNED), (
        "new table: declare whether its rows contain user content"
    )
    for table in OWNED:
        assert re.search(r"^\s*owner\s+TEXT NOT NULL", tables[table], re.MULTILINE), table


def test_every_mutant_still_applies() -> None:
    import tomllib

    root = SOURCE.parents[1]
    for path in sorted((root / "tests" / "mutants").rglob("*.toml")):
        mutant = tomllib.loads(path.read_text())
        assert (root / mutant["file"]).read_text().count(mutant["old"]) == 1, path.name


def test_loggers_keep_their_names() -> None:
    """Users filter the log by these names, whatever the modules are called."""
    names = {
        call.args[0].value
        for tree in PRODUCT.values()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "getLogger"
        if call.args and isinstance(call.args[0], ast.Constant) and str(call.args[0].value).startswith("everthread")
    }
    assert names == {
        "everthread",
        *(f"everthread.{name}" for name in ("agent", "commands", "gateway", "journal", "lanes", "lifecycle")),
        *(f"everthread.{name}" for name in ("memory", "plugins", "tools.mcp", "web")),
    }


def test_no_module_suppresses_errors_of_the_store() -> None:
    """A write that failed is repeated or reported. The queue of the store itself passes the error on by other means."""
    for name, tree in PRODUCT.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "suppress" in ast.unparse(node.func)]
        silent = [call for call in calls if "StoreError" in ast.unparse(call)]
        assert not silent or name == "adapters/sqlite/write_queue.py", name
