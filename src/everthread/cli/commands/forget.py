"""`everthread forget`: a session, a person or a fact, for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED
from everthread.cli.session_output import named, nothing_there

if TYPE_CHECKING:
    from everthread.agent.skills.history import SkillChange
    from everthread.lifecycle.forget import Forgettable
    from everthread.ports.memory import MemoryProvider
    from everthread.store.unit_of_work import UnitOfWork


class Plan(NamedTuple):
    """What is about to be forgotten, in words and as a value."""

    what: Forgettable
    kind: str
    identity: str
    owner: str
    words: str
    cannot_forget: Sequence[str]
    """Providers that keep what they were told."""
    not_loaded: Sequence[str]
    """Providers that this process can't reach: they are told when a process that has them runs."""
    skills: Sequence[str]
    """Files that were drawn from it, which are the user's to keep or to remove."""


@click.command()
@click.argument("session", required=False, shell_complete=completing.sessions)
@click.option("--owner", metavar="NAME", help="Forget a person: every session and note of theirs.")
@click.option("--note", metavar="ID", help="Forget a fact: a note, and its words wherever they stand.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def forget(
    invocation: CliContext, session: str | None, owner: str | None, note: str | None, yes: bool, as_json: bool
) -> None:
    """Forget a session, a person, or a fact. There is no way back.

    A SESSION is its id, the beginning of it, or its title.

    The words leave this store at once. Memory providers are told to forget as well; those that can't are named.

    \b
    Examples:
      everthread forget 01JZ8Q4T
      everthread forget "Trip to Lisbon" --yes
      everthread forget --owner telegram:42
      everthread forget --note 01JZ8Q7M3N5P6R8S9T0V1W2X3Y
    """
    if sum(given is not None for given in (session, owner, note)) != 1:
        raise click.UsageError("Give one thing to forget: a session, --owner or --note")
    forget_it(invocation, session=session, owner=owner, note=note, yes=yes, as_json=as_json)


def forget_it(
    invocation: CliContext,
    *,
    session: str | None = None,
    owner: str | None = None,
    note: str | None = None,
    yes: bool,
    as_json: bool,
) -> None:
    """Say what is about to go, ask unless told not to, and forget it."""

    async def make_plan(runtime: CliRuntime) -> Plan:
        changes = runtime.skills.changes()
        return await runtime.store.read(lambda uow: _plan(uow, runtime.providers, changes, session, owner, note))

    plan = invocation.look(make_plan, nothing=None)
    if plan is None:
        raise nothing_there(session or owner or note or "", invocation)
    # Programs read the other stream.
    click.echo(plan.words, err=as_json)
    if not yes and not click.confirm("Forget this for good?", err=as_json):
        click.echo("Nothing was forgotten.", err=as_json)
        raise click.exceptions.Exit(REFUSED)

    async def carry_out(runtime: CliRuntime) -> None:
        await runtime.lifecycle.forget(plan.what, owner=plan.owner, actor="operator")
        if problem := await runtime.sync_notes(plan.owner):
            click.echo(problem, err=True)

    invocation.act(carry_out)
    _empty_the_log(invocation)
    if as_json:
        show.print_json(
            {
                "forgotten": plan.kind,
                "id": plan.identity,
                "owner": plan.owner,
                "cannot_forget": list(plan.cannot_forget),
                "not_loaded": list(plan.not_loaded),
                "skills": list(plan.skills),
            }
        )
    else:
        click.echo("Forgotten.")


def _empty_the_log(invocation: CliContext) -> None:
    """What a provider or a tool has said when it failed may repeat what it was told."""
    from everthread.log_file import empty

    home = invocation.settings.home
    try:
        empty(home)
    except OSError as error:
        click.echo(f"The log could not be emptied ({error.strerror}); remove {home / 'logs'} yourself.", err=True)


def _plan(
    uow: UnitOfWork,
    providers: Sequence[MemoryProvider],
    changes: Sequence[SkillChange],
    session: str | None,
    owner: str | None,
    note: str | None,
) -> Plan:
    from everthread.ports.memory import Capability, is_told

    if session is not None:
        what, kind, identity, whose, words = _about_session(uow, session)
    elif owner is not None:
        what, kind, identity, whose, words = _about_owner(uow, owner)
    else:
        what, kind, identity, whose, words = _about_note(uow, note or "")
    cannot = [p.name for p in providers if is_told(p) and Capability.FORGET not in p.capabilities]
    loaded = {p.name for p in providers}
    absent = [row.name for row in uow.cursors.providers() if row.name not in loaded]
    if cannot:
        words += f"\nThese providers cannot forget and keep what they were told: {', '.join(cannot)}."
    if absent:
        words += f"\nThese providers are not loaded here and are told when they next run: {', '.join(absent)}."
    skills = _drawn_from(uow, changes, identity, kind)
    if skills:
        words += (
            f"\nThese skills were drawn from it, and are kept: {', '.join(skills)}. Read them with "
            "`everthread skills show NAME`; to remove one, remove its folder in `skills` and in `skills/.old`."
        )
    return Plan(what, kind, identity, whose, words, cannot, absent, skills)


def _drawn_from(uow: UnitOfWork, changes: Sequence[SkillChange], identity: str, kind: str) -> list[str]:
    """The skills that were written in what is about to be forgotten, or in a review of it."""
    if kind == "owner":
        sessions = {session.id for session in uow.sessions.of_owner(identity)}
    else:
        sessions = {identity}
    return sorted({change.skill for change in changes if change.origin and change.origin.session_id in sessions})


def _about_session(uow: UnitOfWork, text: str) -> tuple[Forgettable, str, str, str, str]:
    from everthread.lifecycle import ForgetSession
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    session = find_session_of_any_owner(uow, text, exactly=True)
    words = (
        f"Session {named(session)} of {show.one_line(session.owner)}: "
        f"{show.counted(uow.turns.count(session), 'turn')}, last active {show.local_time(session.active_at)}."
    )
    children = [child for child in uow.sessions.descendants(session.id) if child.forgotten_seq is None]
    if children:
        words += (
            f"\n{show.counted(len(children), 'session')} that grew out of it: what came from it goes there too, "
            "the rest is kept."
        )
    parent = uow.sessions.get(session.parent_id) if session.parent_id else None
    if parent is not None and parent.forgotten_seq is None:
        words += f"\nIt grew out of session {parent.id}, which is kept."
    return ForgetSession(session.id), "session", session.id, session.owner, words


def _about_owner(uow: UnitOfWork, owner: str) -> tuple[Forgettable, str, str, str, str]:
    from everthread.domain.errors import NotFound
    from everthread.domain.model import Kind, NoteTarget
    from everthread.lifecycle import ForgetOwner

    theirs = [s for s in uow.sessions.of_owner(owner) if s.forgotten_seq is None and s.kind is not Kind.NOTES]
    notes = sum(len(uow.notes.current(owner, target)) for target in NoteTarget)
    accounts = [guest.account for guest in uow.access.guests(owner)]
    if not theirs and not notes and not accounts:
        raise NotFound(f"there is nothing of owner {owner[:100]!r}; `sessions list --json` shows the owners there are")
    words = f"Owner {show.one_line(owner)}: {show.counted(len(theirs), 'session')} and {show.counted(notes, 'note')}."
    if accounts:
        words += f"\nLet in no more: {', '.join(show.one_line(account) for account in accounts)}."
    return ForgetOwner(), "owner", owner, owner, words


def _about_note(uow: UnitOfWork, note_id: str) -> tuple[Forgettable, str, str, str, str]:
    from everthread.domain.errors import NotFound
    from everthread.lifecycle import ForgetFact

    note = uow.notes.get(note_id)
    if note is None or uow.erasure.buried("note", note_id):
        raise NotFound(f"there is no note {note_id[:100]!r}")
    words = f'Note {note_id} of {show.one_line(note.owner)}: "{show.shortened(note.content, 200)}"'
    return ForgetFact(note_id), "note", note_id, note.owner, words
