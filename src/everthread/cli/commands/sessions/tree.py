"""`everthread sessions tree`: which session grew out of which, and why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, home_option, json_option, limit_option, pass_invocation
from everthread.cli.session_output import nothing_there, session_as_json, state

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.store.sessions import BoundaryRow
    from everthread.store.unit_of_work import UnitOfWork

_TITLE_CHARS_MIN = 8
_RESUMPTIONS_MAX = 100_000
# How a child came of its parent, for people.
_CAUSES = {"branch": "branch", "compression": "continuation", "delegation": "handed over"}


class Node(NamedTuple):
    """A session, what grew out of it, and which sessions it was come back to from."""

    session: Session
    turns: int
    children: tuple[Node, ...] = ()
    resumed_from: tuple[tuple[str, float], ...] = ()


@click.command("tree")
@click.argument("session", metavar="[ID|TITLE]", required=False, shell_complete=completing.sessions)
@json_option
@limit_option
@home_option
@pass_invocation
def tree_sessions(invocation: CliContext, session: str | None, as_json: bool, limit: int) -> None:
    """Draw which session grew out of which: branches, continuations, work that was handed over, and
    where it was come back to one.

    With a session, its whole family is drawn; without, the families that were last active.

    \b
    Examples:
      everthread sessions tree
      everthread sessions tree "Trip to Lisbon"
      everthread sessions tree --json
    """
    found = invocation.look(lambda runtime: runtime.store.read(lambda uow: _grown(uow, session, limit)), nothing=None)
    if found is None and session is not None:
        raise nothing_there(session, invocation)
    if as_json:
        show.print_json([_as_json(node) for node in found or ()])
    elif not found:
        click.echo(f"No sessions yet in {invocation.settings.home}.")
    else:
        width = shutil.get_terminal_size().columns
        for node in found:
            for line in drawn(node, width):
                click.echo(line)


def drawn(root: Node, width: int) -> Iterator[str]:
    """The lines of a family, each at most so wide as far as ids and causes leave room: titles are shortened first."""
    titles = _titles(root)
    # A family may be as deep as it was often branched: no recursion.
    waiting: list[tuple[Node, str, str]] = [(root, "", "")]
    while waiting:
        node, mark, margin = waiting.pop()
        yield _line(node, mark, width, root=node is root)
        bar = "│ " if node.children else "  "
        for left, at in node.resumed_from:
            name = titles.get(left) or left
            text = f"{margin}{bar}  ↩ from {show.shortened(name)} {show.local_time(at)}"
            yield text if len(text) <= width else text[: width - 1] + "…"
        last = len(node.children) - 1
        for place, child in reversed(list(enumerate(node.children))):
            elbow, below = ("└─ ", "   ") if place == last else ("├─ ", "│  ")
            waiting.append((child, margin + elbow, margin + below))


def _line(node: Node, mark: str, width: int, *, root: bool) -> str:
    session = node.session
    cause = "" if root else f"{_CAUSES.get(session.cause.value, session.cause.value)}: "
    rest = f" ({show.counted(node.turns, 'turn')}, {state(session)}) {session.id}"
    room = max(width - len(mark) - len(cause) - len(rest), _TITLE_CHARS_MIN)
    return f"{mark}{cause}{show.shortened(session.title or '-', room)}{rest}"


def _titles(root: Node) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        found[node.session.id] = node.session.title
        waiting += node.children
    return found


def grow(sessions: Sequence[Session], turns: dict[str, int], resumptions: Sequence[BoundaryRow]) -> tuple[Node, ...]:
    """Families out of sessions, in the order of these; a session whose parent is not among them is a root."""
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
    order: list[Session] = []
    waiting = list(roots)
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1].id, [])
    for session in reversed(order):
        grown = tuple(nodes[child.id] for child in children.get(session.id, []))
        nodes[session.id] = Node(session, turns.get(session.id, 0), grown, tuple(resumed.get(session.id, ())))
    return tuple(nodes[root.id] for root in roots)


def _grown(uow: UnitOfWork, text: str | None, limit: int) -> tuple[Node, ...]:
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
        found += grow(family, {session.id: uow.turns.count(session) for session in family}, resumptions)
    return tuple(found)


def _root(uow: UnitOfWork, session: Session) -> Session:
    """The first of the line that is not forgotten."""
    while session.parent_id is not None:
        parent = uow.sessions.get(session.parent_id)
        if parent is None or parent.forgotten_seq is not None:
            break
        session = parent
    return session


def _as_json(node: Node) -> dict[str, Any]:
    whole: dict[str, dict[str, Any]] = {}
    order: list[Node] = []
    waiting = [node]
    while waiting:
        order.append(waiting.pop())
        waiting += order[-1].children
    for each in reversed(order):
        whole[each.session.id] = session_as_json(each.session, each.turns) | {
            "resumed_from": [{"session": left, "at": show.iso_time(at)} for left, at in each.resumed_from],
            "children": [whole[child.session.id] for child in each.children],
        }
    return whole[node.session.id]
