"""`everthread sessions tree`: draw the lineage of sessions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from everthread.cli.context import CliContext, CliRuntime, list_options
from everthread.cli.output import Result, iso_time, render
from everthread.cli.session_output import session_as_json, session_state
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.text_format import local_time, pluralize, shorten

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.store.sessions import BoundaryRow
    from everthread.store.unit_of_work import UnitOfWork

_TITLE_CHARS_MIN = 8
_RESUMPTIONS_MAX = 100_000
_CAUSES = {"branch": "branch", "compression": "continuation", "delegation": "delegated"}


class Node(NamedTuple):
    """A session with its children, and the sessions it was resumed from."""

    session: Session
    turns: int
    children: tuple[Node, ...] = ()
    resumed_from: tuple[tuple[str, float], ...] = ()


@click.command("tree")
@click.argument("session", metavar="[ID|TITLE]", required=False, shell_complete=complete_sessions)
@list_options
def tree_sessions(cli: CliContext, session: str | None, as_json: bool, limit: int) -> None:
    """Draw the lineage of sessions: branches, continuations, delegated work and resumptions.

    With a session, draw its whole tree; without, the most recently active trees.

    \b
    Examples:
      everthread sessions tree
      everthread sessions tree "Trip to Lisbon"
      everthread sessions tree --json
    """

    async def read(runtime: CliRuntime) -> tuple[Node, ...]:
        return await runtime.store.read(lambda uow: _read_trees(uow, session, limit))

    found = cli.read(read, default=()) if session is None else cli.read_existing(read, session)

    def text() -> Iterator[str]:
        width = shutil.get_terminal_size().columns
        for node in found:
            yield from draw(node, width)
        if not found:
            yield f"No sessions yet in {cli.settings.home}."

    render(Result(lambda: [_as_json(node) for node in found], text), as_json)


def draw(root: Node, width: int) -> Iterator[str]:
    """Yield the lines of a tree, shortening titles to fit the width where possible."""
    titles = {node.session.id: node.session.title for node in _nodes(root)}
    # A tree may be very deep: no recursion.
    waiting: list[tuple[Node, str, str]] = [(root, "", "")]
    while waiting:
        node, mark, margin = waiting.pop()
        yield _line(node, mark, width, root=node is root)
        bar = "│ " if node.children else "  "
        for left, at in node.resumed_from:
            name = titles.get(left) or left
            text = f"{margin}{bar}  ↩ from {shorten(name)} {local_time(at)}"
            yield text if len(text) <= width else text[: width - 1] + "…"
        last = len(node.children) - 1
        for index, child in reversed(list(enumerate(node.children))):
            elbow, below = ("└─ ", "   ") if index == last else ("├─ ", "│  ")
            waiting.append((child, margin + elbow, margin + below))


def _line(node: Node, mark: str, width: int, *, root: bool) -> str:
    session = node.session
    cause = "" if root else f"{_CAUSES.get(session.cause.value, session.cause.value)}: "
    rest = f" ({pluralize(node.turns, 'turn')}, {session_state(session)}) {session.id}"
    room = max(width - len(mark) - len(cause) - len(rest), _TITLE_CHARS_MIN)
    return f"{mark}{cause}{shorten(session.title or '-', room)}{rest}"


def _nodes(root: Node) -> list[Node]:
    """List the nodes of a tree, parents before their children, without recursion."""
    found = [root]
    for node in found:
        found += node.children
    return found


def build_trees(
    sessions: Sequence[Session], turns: dict[str, int], resumptions: Sequence[BoundaryRow]
) -> tuple[Node, ...]:
    """Build trees from sessions, in their order. A session whose parent is not among them is a root."""
    known = {session.id for session in sessions}
    children: dict[str, list[Session]] = {}
    roots: list[Session] = []
    for session in sessions:
        if session.parent_id in known:
            children.setdefault(session.parent_id or "", []).append(session)
        else:
            roots.append(session)
    resumed: dict[str, list[tuple[str, float]]] = {}
    for row in sorted(resumptions, key=lambda row: row.id):
        if row.to_session and row.from_session and row.from_session != row.to_session:
            resumed.setdefault(row.to_session, []).append((row.from_session, row.at))

    nodes: dict[str, Node] = {}
    # Children before their parents, without recursion.
    order = list(roots)
    for session in order:
        order += children.get(session.id, [])
    for session in reversed(order):
        below = tuple(nodes[child.id] for child in children.get(session.id, []))
        nodes[session.id] = Node(session, turns.get(session.id, 0), below, tuple(resumed.get(session.id, ())))
    return tuple(nodes[root.id] for root in roots)


def _read_trees(uow: UnitOfWork, text: str | None, limit: int) -> tuple[Node, ...]:
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    if text is not None:
        roots = [_root(uow, find_session_of_any_owner(uow, text))]
    else:
        newest = uow.sessions.conversations(limit)
        roots = list({root.id: root for root in (_root(uow, session) for session in newest)}.values())
    resumptions = uow.sessions.boundaries(limit=_RESUMPTIONS_MAX, kind="resume")
    found: list[Node] = []
    for root in roots:
        family = [root, *(s for s in uow.sessions.descendants(root.id) if s.forgotten_seq is None)]
        family[1:] = sorted(family[1:], key=lambda session: (session.opened_at, session.id))
        found += build_trees(family, {session.id: uow.turns.count(session) for session in family}, resumptions)
    return tuple(found)


def _root(uow: UnitOfWork, session: Session) -> Session:
    """Return the first ancestor before a forgotten session."""
    while session.parent_id is not None:
        parent = uow.sessions.get(session.parent_id)
        if parent is None or parent.forgotten_seq is not None:
            break
        session = parent
    return session


def _as_json(node: Node) -> dict[str, Any]:
    whole: dict[str, dict[str, Any]] = {}
    for each in reversed(_nodes(node)):
        whole[each.session.id] = session_as_json(each.session, each.turns) | {
            "resumed_from": [{"session": left, "at": iso_time(at)} for left, at in each.resumed_from],
            "children": [whole[child.session.id] for child in each.children],
        }
    return whole[node.session.id]
