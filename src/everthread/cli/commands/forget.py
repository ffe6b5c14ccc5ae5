"""`everthread forget`: delete a session, a person or a note permanently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, confirm, render, strip_control_chars
from everthread.cli.session_output import session_name
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.errors import NotFound
from everthread.domain.text_format import local_time, one_line, pluralize, shorten

if TYPE_CHECKING:
    from everthread.agent.skills.history import SkillChange
    from everthread.lifecycle.forget import Forgettable
    from everthread.ports.memory import MemoryProvider
    from everthread.store.recalled import QuotingTurn
    from everthread.store.unit_of_work import UnitOfWork


_PROBLEMS_MAX = 20
_QUOTING_SHOWN_MAX = 20


class ForgetPlan(NamedTuple):
    """The data to forget, and a description of the consequences."""

    what: Forgettable
    kind: str
    identity: str
    owner: str
    words: str
    cannot_forget: Sequence[str]
    """Providers that can't delete data."""
    not_loaded: Sequence[str]
    """Providers not loaded in this process; they are notified by a process that loads them."""
    skills: Sequence[str]
    """Skills that it wrote. They are removed, or return to their text from before."""
    skills_kept: Sequence[str]
    """Skills that it wrote and somebody else changed later. Their newest text is kept and may repeat it."""
    quoted: Sequence[QuotingTurn]
    """Turns of other sessions whose answers may quote it."""


@click.command()
@click.argument("session", required=False, shell_complete=complete_sessions)
@click.option("--owner", metavar="NAME", help="Forget a person: all their sessions and notes.")
@click.option("--note", metavar="ID", help="Forget a note, and its text wherever it was copied to.")
@click.option("--quoted", is_flag=True, help="Also erase the answers in other sessions that may quote it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def forget(
    cli: CliContext, session: str | None, owner: str | None, note: str | None, quoted: bool, yes: bool, as_json: bool
) -> None:
    """Forget a session, a person or a note. This can't be undone.

    SESSION is an id, a prefix of an id, or a title.

    The text is deleted from the store immediately. Memory providers are asked to delete it too; those that can't are
    listed. The words of a note are also erased from skills and attachments; your own files are not changed.

    Answers in other sessions may repeat the text in other words if recall showed it there. The command lists them;
    --quoted erases them, also later, with the id of the forgotten session.

    \b
    Examples:
      everthread forget 01JZ8Q4T
      everthread forget "Trip to Lisbon" --yes
      everthread forget 01JZ8Q4T --quoted
      everthread forget --owner telegram:42
      everthread forget --note 01JZ8Q7M3N5P6R8S9T0V1W2X3Y
    """
    if sum(value is not None for value in (session, owner, note)) != 1:
        raise click.UsageError("Give one of SESSION, --owner and --note")
    forget_it(cli, session=session, owner=owner, note=note, quoted=quoted, yes=yes, as_json=as_json)


def forget_it(
    cli: CliContext,
    *,
    session: str | None = None,
    owner: str | None = None,
    note: str | None = None,
    quoted: bool = False,
    yes: bool,
    as_json: bool,
) -> None:
    """Describe the consequences, ask for confirmation unless `yes`, and forget."""

    async def make_plan(runtime: CliRuntime) -> ForgetPlan:
        changes = runtime.skills.changes()
        return await runtime.store.read(
            lambda uow: _plan(uow, runtime.providers, changes, (session, owner, note), quoted)
        )

    plan = cli.read_existing(make_plan, session or owner or note or "")
    click.echo(strip_control_chars(plan.words), err=as_json)
    confirm("Forget this permanently?", "Nothing was forgotten.", yes=yes, as_json=as_json)

    async def forget_plan(runtime: CliRuntime) -> None:
        started = runtime.clock.now()
        await runtime.lifecycle.forget(plan.what, owner=plan.owner, actor="operator", quoted=quoted)
        for incident in reversed(await runtime.store.read(lambda uow: uow.incidents.newest(_PROBLEMS_MAX))):
            if incident.source == "forget" and incident.at >= started:
                click.echo(strip_control_chars(incident.text), err=True)

    cli.write(forget_plan)
    data = {
        "forgotten": plan.kind,
        "id": plan.identity,
        "owner": plan.owner,
        "cannot_forget": list(plan.cannot_forget),
        "not_loaded": list(plan.not_loaded),
        "skills": list(plan.skills),
        "skills_kept": list(plan.skills_kept),
        "quoted": [{"session": turn.session_id, "turn": turn.number} for turn in plan.quoted],
        "quoted_erased": quoted,
    }
    render(Result(data, "Forgotten."), as_json)


def _plan(
    uow: UnitOfWork,
    providers: Sequence[MemoryProvider],
    changes: Sequence[SkillChange],
    named: tuple[str | None, str | None, str | None],
    quoted: bool,
) -> ForgetPlan:
    session, owner, note = named
    from everthread.ports.memory import Capability, receives_events

    if session is not None:
        found = _describe_session(uow, session, quoted)
    else:
        found = _describe_owner(uow, owner) if owner is not None else _describe_note(uow, note or "")
    what, kind, identity, whose, words = found
    cannot = [p.name for p in providers if receives_events(p) and Capability.FORGET not in p.capabilities]
    loaded = {p.name for p in providers}
    absent = [row.name for row in uow.cursors.providers() if row.name not in loaded]
    if cannot:
        words += f"\nThese providers can't delete data and keep theirs: {', '.join(cannot)}."
    if absent:
        words += f"\nThese providers are not loaded here and delete it when they next run: {', '.join(absent)}."
    from everthread.agent.skills.history import plan_repairs
    from everthread.lifecycle.forget import forgotten_sessions, quoting_turns

    repairs = plan_repairs(changes[::-1], forgotten_sessions(uow, what, whose))
    removed = [repair.skill for repair in repairs if repair.restores and repair.restore is None]
    restored = [repair.skill for repair in repairs if repair.restores and repair.restore is not None]
    kept = [repair.skill for repair in repairs if not repair.restores]
    if removed:
        words += f"\nSkills that it wrote, removed with their earlier versions: {', '.join(removed)}."
    if restored:
        words += f"\nSkills that it changed, restored to their text from before: {', '.join(restored)}."
    if kept:
        words += f"\nSkills that it wrote and others changed later, kept without its versions: {', '.join(kept)}."
    quoting = quoting_turns(uow, what, whose)
    words += _describe_quoting(uow, quoting, quoted)
    return ForgetPlan(what, kind, identity, whose, words, cannot, absent, [*removed, *restored], kept, quoting)


def _describe_quoting(uow: UnitOfWork, quoting: Sequence[QuotingTurn], quoted: bool) -> str:
    if not quoting:
        return ""
    lines = [f"  turn {turn.number} of {_named(uow, turn.session_id)}" for turn in quoting[:_QUOTING_SHOWN_MAX]]
    if len(quoting) > len(lines):
        lines.append(f"  and {len(quoting) - len(lines)} more; --json has all")
    fate = "They are erased too." if quoted else "They are kept; --quoted erases them too."
    what = pluralize(len(quoting), "answer")
    return f"\n{what} in other sessions may quote it, because recall showed it there. {fate}\n" + "\n".join(lines)


def _named(uow: UnitOfWork, session_id: str) -> str:
    session = uow.sessions.get(session_id)
    return session_name(session) if session is not None else session_id


def _describe_session(uow: UnitOfWork, text: str, quoted: bool) -> tuple[Forgettable, str, str, str, str]:
    from everthread.lifecycle import ForgetSession
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    forgotten = uow.sessions.get(text) if quoted else None
    if forgotten is not None and forgotten.forgotten_seq is not None:
        words = f"Session {text} of {one_line(forgotten.owner)} was forgotten before."
        return ForgetSession(text), "session", text, forgotten.owner, words
    session = find_session_of_any_owner(uow, text, exactly=True)
    words = (
        f"Session {session_name(session)} of {one_line(session.owner)}: "
        f"{pluralize(uow.turns.count(session), 'turn')}, last active {local_time(session.active_at)}."
    )
    children = [child for child in uow.sessions.descendants(session.id) if child.forgotten_seq is None]
    if children:
        words += (
            f"\n{pluralize(len(children), 'session')} branched or continued from it: text inherited from it is deleted "
            "there too, the rest is kept."
        )
    parent = uow.sessions.get(session.parent_id) if session.parent_id else None
    if parent is not None and parent.forgotten_seq is None:
        words += f"\nIts parent session {parent.id} is kept."
    return ForgetSession(session.id), "session", session.id, session.owner, words


def _describe_owner(uow: UnitOfWork, owner: str) -> tuple[Forgettable, str, str, str, str]:
    from everthread.domain.model import NoteTarget, SessionKind
    from everthread.lifecycle import ForgetOwner

    theirs = [s for s in uow.sessions.of_owner(owner) if s.forgotten_seq is None and s.kind is not SessionKind.NOTES]
    notes = sum(len(uow.notes.current(owner, target)) for target in NoteTarget)
    accounts = [guest.account for guest in uow.access.guests(owner)]
    if not theirs and not notes and not accounts:
        raise NotFound(f"no data of owner {owner[:100]!r}; `sessions list --json` shows the owners")
    words = f"Owner {one_line(owner)}: {pluralize(len(theirs), 'session')} and {pluralize(notes, 'note')}."
    if accounts:
        words += f"\nAccess revoked for: {', '.join(one_line(account) for account in accounts)}."
    return ForgetOwner(), "owner", owner, owner, words


def _describe_note(uow: UnitOfWork, note_id: str) -> tuple[Forgettable, str, str, str, str]:
    from everthread.lifecycle import ForgetFact

    note = uow.notes.get(note_id)
    if note is None or uow.erasure.has_tombstone("note", note_id):
        raise NotFound(f"no note {note_id[:100]!r}; `memory list` shows all")
    words = f'Note {note_id} of {one_line(note.owner)}: "{shorten(note.content, 200)}"'
    return ForgetFact(note_id), "note", note_id, note.owner, words
