"""Import sessions, chat bindings, notes and accounts from a Hermes home, through the public `lifecycle` calls."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from everthread.cli.commands.sessions.import_ import ImportCounts
from everthread.domain.boundary import Resume
from everthread.domain.export_format import NOTE_CHARS_MAX, NoteLine
from everthread.domain.model import SUBAGENT_PLATFORM, NoteTarget, SessionKey, replace_surrogates
from everthread.domain.note_provenance import IMPORTED_PREFIX
from everthread.domain.pairing import PairedAccount, format_account, is_group, owner_problem
from everthread.gateway.routing import owner_of
from everthread.hermes_import.allowlist import Account, Skipped
from everthread.hermes_import.convert import ConvertedSession, Converter, Destination, our_id
from everthread.hermes_import.lineage import LinkedSession, order_by_parent
from everthread.hermes_import.session_keys import HERE, TERMINAL, Route, key_of_member, key_of_route
from everthread.lifecycle.import_match import ImportedSession, ImportOutcome
from everthread.lifecycle.pairing import Pairings
from everthread.memory.note_files import parse

if TYPE_CHECKING:
    from everthread.cli.context import CliRuntime
    from everthread.cli.output import Advance
    from everthread.config.schema import Settings
    from everthread.domain.model import Session
    from everthread.hermes_import.database import Database
    from everthread.store.unit_of_work import UnitOfWork

_LOCAL_PLATFORMS = (TERMINAL, "cron", SUBAGENT_PLATFORM)


class ImportReport(Struct):
    """The result of an import."""

    source: str
    schema: int = 0
    counts: ImportCounts = field(default_factory=ImportCounts)
    messages: int = 0
    places: dict[str, str] = field(default_factory=dict[str, str])
    """Session bound to each chat by this import."""
    bindings: dict[str, str] = field(default_factory=dict[str, str])
    """The same, including earlier imports."""
    guests: list[str] = field(default_factory=list[str])
    skills: list[str] = field(default_factory=list[str])
    skipped: list[Skipped] = field(default_factory=list[Skipped])

    def skip(self, what: str, why: str, count: int = 1) -> None:
        self.skipped.append(Skipped(what, why, count))


class HermesImport:
    """One import. Without a runtime there is no home yet, and everything is new."""

    def __init__(
        self, runtime: CliRuntime | None, settings: Settings, report: ImportReport, *, as_mine: bool, dry_run: bool
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.report = report
        self._now = runtime.clock.now() if runtime is not None else time.time()  # noqa: TID251 - no runtime, no clock
        self._as_mine = as_mine
        self.dry_run = dry_run
        self._owners = {account: owner for owner, linked in settings.gateway.links.items() for account in linked}
        self._imported: dict[str, ImportedSession] = {}
        self._last: dict[str, str] = {}
        """Session of Hermes -> last session here that it became."""

    # --- Sessions ----------------------------------------------------------------------------------------------------

    async def sessions(self, database: Database, routes: Sequence[Route], advance: Advance) -> None:
        members = order_by_parent(database.sessions())
        existing = await self._existing(member.row.id for member in members)
        await self._load_guests()
        routed = {route.session_id: route for route in routes}
        keys = frozenset(key_of_route(route, self.settings.profile) for route in routes)
        owners: dict[str, str] = {}

        def place_of(member: LinkedSession) -> Destination:
            known = existing.get(our_id(member.row.id))
            route = routed.get(member.row.id)
            key = key_of_member(member, route, self.settings.profile)
            if known is not None and known.opened_at == member.row.started_at:
                key, owner = known.key, known.owner
            else:
                owner = owners.get(member.parent or "") or self._owner(member, key, route)
            owners[member.row.id] = owner
            return Destination(key, owner)

        waiting = Counter(member.parent for member in members if member.parent is not None)
        translator = Converter(place_of, self._now, dict(waiting))
        for member in members:
            rows = list(database.messages(member.row.id))
            if member.remark:
                self.report.skip(f"the parent of {member.row.id}", member.remark)
            for arriving in translator.session(member, rows):
                await self._import(arriving, keys)
                self._last[member.row.id] = arriving.line.id
            advance(len(rows))
        self._report_skipped(translator, database)

    async def _import(self, arriving: ConvertedSession, keys: frozenset[SessionKey]) -> None:
        line = arriving.line
        if self.runtime is None:
            done = ImportedSession(ImportOutcome.NEW, line.id, len(arriving.turns))
        else:
            done = await self.runtime.lifecycle.import_session(
                line,
                lambda found: arriving.items(found.turns, found.rewinds),
                owner=line.owner,
                before=self._imported,
                routed=keys,
                dry_run=self.dry_run,
            )
        self._imported[line.id] = done
        self.report.counts.count(line, done)
        if done.turns:
            self.report.messages += sum(len(turn.messages) for turn in arriving.turns[-done.turns :])

    def _report_skipped(self, translator: Converter, database: Database) -> None:
        for role, count in sorted(translator.unknown.items()):
            self.report.skip(f"messages of the role {role[:40]!r}", "have an unknown role", count)
        if translator.unfinished:
            self.report.skip("unfinished turns", "Hermes may be answering; import again later", translator.unfinished)
        if stray := database.stray():
            self.report.skip("messages", "have no session in the database", stray)

    async def _existing(self, session_ids: Iterable[str]) -> Mapping[str, Session]:
        wanted = [our_id(session_id) for session_id in session_ids]

        def read(uow: UnitOfWork) -> dict[str, Session]:
            return {found.id: found for each in wanted if (found := uow.sessions.get(each)) is not None}

        return await self.runtime.store.read(read) if self.runtime is not None else {}

    # --- Owners ------------------------------------------------------------------------------------------------------

    async def _load_guests(self) -> None:
        if self.runtime is not None:
            guests = await self.runtime.store.read(lambda uow: uow.access.guests())
            self._owners = {guest.account: guest.owner for guest in guests} | self._owners

    def _owner(self, member: LinkedSession, key: SessionKey, route: Route | None) -> str:
        if self._as_mine or key.platform in _LOCAL_PLATFORMS:
            return self.settings.owner
        user = member.row.user_id or (route.user if route is not None else None) or key.user or key.chat
        return owner_of(key, self._person(key.platform, replace_surrogates(user)))

    def _person(self, platform: str, user: str) -> str:
        account = format_account(platform, user)
        owner = self._owners.get(account, account)
        if owner_problem(owner) or is_group(owner):
            # An account without a valid name gets an owner of its own, never that of another person.
            return f"{HERE}-{hashlib.sha256(account.encode(errors='replace')).hexdigest()[:24]}"
        return owner

    # --- Chat bindings -----------------------------------------------------------------------------------------------

    async def routing(self, routes: Sequence[Route], before: Mapping[str, str]) -> None:
        """Bind chats to imported sessions. `before` has bindings of earlier imports; a chat rebound since stays."""
        self.report.bindings = dict(before)
        theirs = frozenset(
            done.session_id for done in self._imported.values() if done.session_id and not done.outcome.why
        )
        # If two routes map to one chat, the newer one counts.
        for route in sorted(routes, key=lambda route: route.updated_at):
            key = key_of_route(route, self.settings.profile)
            session_id = self._last.get(route.session_id)
            done = self._imported.get(session_id or "")
            if route.skip_reason:
                self.report.skip(str(key), route.skip_reason)
            elif done is None or done.session_id is None:
                self.report.skip(str(key), "its session was not imported")
            elif done.outcome is ImportOutcome.FORGOTTEN:
                self.report.skip(str(key), "its session was forgotten here")
            elif (problem := await self._bind(key, done.session_id, before.get(str(key)), theirs)) is not None:
                self.report.skip(str(key), problem)
            else:
                self.report.bindings[str(key)] = done.session_id

    async def _bind(self, key: SessionKey, session_id: str, before: str | None, theirs: frozenset[str]) -> str | None:
        """Bind the chat to the session. Return the problem if that is not possible."""
        if self.runtime is None:
            self.report.places[str(key)] = session_id
            return None

        def read(uow: UnitOfWork) -> tuple[Session | None, str, str | None, str]:
            _, on = uow.sessions.at(key)
            target, tip = uow.sessions.get(session_id), uow.sessions.tip(session_id)
            left = uow.sessions.tip(before) if before is not None else None
            newest = tip.id if tip is not None else session_id
            return on, newest, left.id if left is not None else None, target.owner if target is not None else ""

        on, tip, left, owner = await self.runtime.store.read(read)
        if on is not None and on.id == tip:
            return None
        put_there = {before, left} if before is not None else theirs
        if on is not None and (on.id not in put_there or before == session_id):
            return "is bound to another session here"
        if on is not None and on.owner != owner:
            return f"belongs to {on.owner} here, but its session belongs to {owner}"
        if on is None and before == session_id:
            return "its session has ended here"
        if not self.dry_run:
            done = await self.runtime.lifecycle.cross(key, Resume(session_id), owner=owner, actor="import")
            if done.refusal is not None:
                return f"could not be bound to {session_id} ({done.refusal.value}); import again later"
        self.report.places[str(key)] = session_id
        return None

    # --- Notes and guests --------------------------------------------------------------------------------------------

    async def notes(self, target: NoteTarget, text: str) -> None:
        owner, long = self.settings.owner, 0
        for content in parse(replace_surrogates(text)):
            if len(content) > NOTE_CHARS_MAX:
                long += 1
                continue
            line = NoteLine(note_id(owner, target, content), owner, target, content, self._now)
            self.report.counts.notes += await self._import_note(line)
        if long:
            self.report.skip(f"notes of {target.name}.md", f"have more than {NOTE_CHARS_MAX} characters", long)

    async def _import_note(self, line: NoteLine) -> bool:
        if self.runtime is None:
            return True
        # Imported before; it may have been changed or removed here since.
        if await self.runtime.store.read(lambda uow: uow.notes.get(line.id)) is not None:
            return False
        return await self.runtime.lifecycle.import_note(line, owner=line.owner, dry_run=self.dry_run)

    async def guests(self, accounts: Sequence[Account], before: Sequence[str]) -> None:
        """Allow the accounts that Hermes allows, except those of earlier imports: they may have been revoked since."""
        known = set(before)
        wanted = [
            PairedAccount(each.platform, each.user, self._guest_owner(each), each.name, each.at or self._now)
            for each in accounts
            if format_account(each.platform, each.user) not in known
        ]
        if self.runtime is not None and wanted:
            pairings = Pairings(self.runtime.store, self.runtime.clock)
            wanted = list(await pairings.import_guests(wanted, dry_run=self.dry_run))
        self.report.guests = [guest.account for guest in wanted]

    def _guest_owner(self, account: Account) -> str:
        return self.settings.owner if self._as_mine else self._person(account.platform, account.user)


def note_id(owner: str, target: NoteTarget, content: str) -> str:
    """Return a stable id for a note of Hermes, so that importing again finds it."""
    words = " ".join(content.split())
    digest = hashlib.sha256("\0".join((owner, target.value, words)).encode()).hexdigest()
    return f"{IMPORTED_PREFIX}{digest[:20]}"
