"""Prompt cache: the encoded start of each session's next request. It can be rebuilt from the store at any time.

An entry is valid only for the session, generation, prefix and configuration that it was made for, so a stale entry is
never used, and an entry can be evicted at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from everthread.agent.model_call import ModelChoice
from everthread.agent.prompt import PromptBuilder, StoredPrompt, decode_prompt, encode_prompt
from everthread.agent.tools.runner import Toolbox
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.transcript import to_request
from everthread.concurrency import in_slices
from everthread.domain.errors import NotFound, Outdated
from everthread.domain.events import View
from everthread.domain.model import NoteTarget, NoteVersion, Prefix, Session, SessionRef, Turn
from everthread.domain.recall_scope import RecallScope
from everthread.domain.rights import Rights
from everthread.domain.spend import BYTES_PER_TOKEN
from everthread.lifecycle import Lifecycle
from everthread.ports.clock import Clock
from everthread.ports.model import Prompt, ToolSchema
from everthread.store.recall_scope import DEFAULT_RECALL_SCOPES, RecallScopes
from everthread.store.unit_of_work import Store, UnitOfWork

COUNT_MAX = 16_384
BYTES_MAX = 128 * 1024 * 1024
"""Limit for all entries together; an evicted entry is rebuilt from the store."""
AGE_S_MAX = 3600.0

Signature = tuple[str, str, str, str]
"""The model's name, the tool set's digest, the mark of the recall scope, and the digest of the rights."""


class Prepared(Struct, frozen=True):
    session_id: str
    generation: int
    prefix_number: int
    signature: Signature
    forget_count: int
    """Number of the owner's erasures at encoding. A later erasure invalidates the entry, which may contain its text."""
    last_turn: int
    """The newest turn that `history` covers."""
    head: bytes
    history: bytes
    left_out: bool = False
    """The oldest turns did not fit."""

    @property
    def bytes(self) -> int:
        return len(self.head) + len(self.history)


def select_newest(pieces: Sequence[bytes], room_bytes: int) -> Sequence[bytes]:
    """Return the newest pieces that fit, without those that are too large by themselves.

    Pieces are dropped from the front in steps of half the room, so the start stays the same until another half is full.
    """
    pieces = [piece for piece in pieces if len(piece) < room_bytes]
    surplus = sum(map(len, pieces)) + len(pieces) - room_bytes
    half = max(room_bytes // 2, 1)
    going = -(-surplus // half) * half
    for number, piece in enumerate(pieces):
        if going <= 0:
            return pieces[number:]
        going -= len(piece) + 1
    return pieces[-1:]


class Preparer(Struct):
    """Prepare the start of requests, in an LRU cache."""

    store: Store
    lifecycle: Lifecycle
    prompts: PromptBuilder
    clock: Clock
    output_tokens_max: int
    count_max: int = COUNT_MAX
    age_s_max: float = AGE_S_MAX
    scopes: RecallScopes = DEFAULT_RECALL_SCOPES
    _kept: OrderedDict[tuple[str, str], tuple[float, Prepared]] = field(
        default_factory=OrderedDict[tuple[str, str], tuple[float, Prepared]]
    )
    """The newest entry by session and model; its tools may differ from the current ones."""
    _bytes: int = 0
    _in_groups: tuple[str, Toolbox] | None = None
    """The digest of a tool set, and those of its tools that are offered in group chats."""

    async def prepare(self, ref: SessionRef, choice: ModelChoice, tools: SessionTools) -> Prepared:
        """Return the start of the session's next request, as of the current state of the store."""
        scope = await self._scope(ref)
        offered = self._offered(scope, tools.toolbox)
        tools = tools if offered is tools.toolbox else replace(tools, toolbox=offered)
        signature = (choice.name, tools.toolbox.digest, scope.mark, tools.rights.digest)
        session, number, forget_count = await self.store.read_inline(lambda uow: _read_state(uow, ref))
        kept = self._get(ref.session_id, signature)
        now = (session.generation, number, forget_count)
        if kept is not None and (kept.generation, kept.prefix_number, kept.forget_count) == now:
            if kept.last_turn == session.last_turn:
                return kept
            newer = await self.store.read(lambda uow: _read_turns_after(uow, session, kept.last_turn))
            grown = self._extend(kept, newer, choice, session.last_turn)
            if grown is not None:
                return self._keep(grown)
        return self._keep(await self._build(ref, choice, tools, signature))

    async def _scope(self, ref: SessionRef) -> RecallScope:
        if not self.scopes.is_limited(ref):
            return RecallScope(ref.owner)
        return await self.store.read_inline(lambda uow: self.scopes.of(uow, ref))

    def _offered(self, scope: RecallScope, toolbox: Toolbox) -> Toolbox:
        """Return the tools that are offered in this session: in a group chat, none that answers from all memory."""
        if not toolbox.has_whole_memory or not scope.in_group:
            return toolbox
        if self._in_groups is None or self._in_groups[0] != toolbox.digest:
            self._in_groups = toolbox.digest, toolbox.only(lambda tool: not tool.whole_memory)
        return self._in_groups[1]

    async def prepare_fallback(self, ref: SessionRef, choice: ModelChoice) -> Prepared:
        """Return the start for a fallback model, without storing or caching it."""
        session, prefix, view, _, forget_count = await self.store.read(lambda uow: _read_all(uow, ref, self.scopes))
        if prefix is None:
            raise NotFound(f"session {ref.session_id!r} has no stored prefix")
        prompt = decode_prompt(prefix.content).prompt
        prompt = replace(prompt, model=choice.model, tools=prompt.tools if choice.traits.tools else ())
        return await self._encode(session, prefix.number, (choice.name, "", "", ""), forget_count, choice, prompt, view)

    async def prepare_stored(self, ref: SessionRef, choice: ModelChoice, rights: Rights) -> Prepared | None:
        """Return the start with the session's stored prefix, even if the tools have changed. Nothing is stored.

        `None` if the session has no prefix, or one that was built for other rights or has more memory than it may be
        shown.
        """
        scope = await self._scope(ref)
        session, number, forget_count = await self.store.read_inline(lambda uow: _read_state(uow, ref))
        _, kept = self._kept.get((ref.session_id, choice.name), (0.0, None))
        now = (session.generation, number, forget_count, session.last_turn)
        known = kept and (kept.generation, kept.prefix_number, kept.forget_count, kept.last_turn)
        if kept is not None and now == known and kept.signature[2:] == (scope.mark, rights.digest):
            return kept
        session, prefix, view, _, forget_count = await self.store.read(lambda uow: _read_all(uow, ref, self.scopes))
        frozen = decode_prompt(prefix.content) if prefix is not None else None
        if prefix is None or frozen is None or (frozen.scope, frozen.rights) != (scope.mark, rights.digest):
            return None
        signature = (choice.name, "", scope.mark, rights.digest)
        return await self._encode(session, prefix.number, signature, forget_count, choice, frozen.prompt, view)

    def extend(self, prepared: Prepared, turn: Turn, choice: ModelChoice) -> None:
        """Extend the cached entry by a committed turn, which saves reading it from the store."""
        if turn.number == prepared.last_turn + 1 and self._get(prepared.session_id, prepared.signature) is prepared:
            grown = self._extend(prepared, (turn,) if turn.status.remembered else (), choice, turn.number)
            if grown is not None:
                self._keep(grown)

    def _extend(self, kept: Prepared, turns: Sequence[Turn], choice: ModelChoice, last_turn: int) -> Prepared | None:
        """Return the entry extended by the turns; `None` if they do not fit."""
        pieces = [choice.client.encode(to_request(turn)) for turn in turns]
        history = b",".join(piece for piece in (kept.history, *pieces) if piece)
        if len(history) > self.room(choice, kept.head):
            return None
        return replace(kept, history=history, last_turn=last_turn)

    def room(self, choice: ModelChoice, head: bytes) -> int:
        """Bytes available for history. A third of the context is left to the turn: its message, recall and tools."""
        tokens = max(choice.traits.context_tokens - self.output_tokens_max, choice.traits.context_tokens // 2)
        return max(tokens * BYTES_PER_TOKEN * 2 // 3 - len(head), 0)

    async def _build(self, ref: SessionRef, choice: ModelChoice, tools: SessionTools, signature: Signature) -> Prepared:
        while True:
            # Each repetition needs another request to forget.
            with suppress(Outdated):
                return await self._build_once(ref, choice, tools, signature)

    async def _build_once(
        self, ref: SessionRef, choice: ModelChoice, tools: SessionTools, signature: Signature
    ) -> Prepared:
        schemas = tools.toolbox.schemas if choice.traits.tools else ()
        session, prefix, view, notes, forget_count = await self.store.read(lambda uow: _read_all(uow, ref, self.scopes))
        frozen = decode_prompt(prefix.content) if prefix else None
        _, _, mark, rights = signature
        is_allowed = frozen is not None and (frozen.scope, frozen.rights) == (mark, rights)
        if prefix is None or frozen is None or not is_allowed or not _fits(frozen, choice, schemas):
            prompt = await self.prompts.build(
                ref,
                session,
                view.summary or "",
                notes,
                model=choice.model,
                tools=schemas,
                small=choice.traits.small,
                rights=tools.rights,
            )
            frozen = StoredPrompt(choice.name, prompt, mark, rights)
            prefix = await self.lifecycle.put_prefix(ref, encode_prompt(frozen), forget_count)
        return await self._encode(session, prefix.number, signature, forget_count, choice, frozen.prompt, view)

    async def _encode(
        self,
        session: Session,
        number: int,
        signature: Signature,
        forget_count: int,
        choice: ModelChoice,
        prompt: Prompt,
        view: View,
    ) -> Prepared:
        head = choice.client.head(prompt)
        # In slices: encoding a long conversation in one step would block the event loop.
        pieces = await in_slices(lambda turn: choice.client.encode(to_request(turn)), view.turns)
        pieces = [piece for piece in pieces if piece]
        kept = select_newest(pieces, self.room(choice, head))
        history, left_out = b",".join(kept), len(kept) < len(pieces)
        last = session.last_turn
        return Prepared(session.id, session.generation, number, signature, forget_count, last, head, history, left_out)

    def _get(self, session_id: str, signature: Signature) -> Prepared | None:
        used_at, kept = self._kept.get((session_id, signature[0]), (0.0, None))
        if kept is None or kept.signature != signature or self.clock.elapsed() - used_at >= self.age_s_max:
            return None
        return kept

    def _keep(self, prepared: Prepared) -> Prepared:
        key = (prepared.session_id, prepared.signature[0])
        now = self.clock.elapsed()
        self._bytes += prepared.bytes - (self._kept[key][1].bytes if key in self._kept else 0)
        self._kept[key] = (now, prepared)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and self._is_too_much(now):
            _, (_, oldest) = self._kept.popitem(last=False)
            self._bytes -= oldest.bytes
        return prepared

    def _is_too_much(self, now: float) -> bool:
        used_at, _ = next(iter(self._kept.values()))
        too_old = now - used_at >= self.age_s_max
        return too_old or len(self._kept) > self.count_max or self._bytes > BYTES_MAX


def _fits(frozen: StoredPrompt, choice: ModelChoice, schemas: tuple[ToolSchema, ...]) -> bool:
    """Return true if the stored prompt is usable: it has the same model and the same tools."""
    return frozen.name == choice.name and frozen.prompt.model == choice.model and frozen.prompt.tools == schemas


def _read_state(uow: UnitOfWork, ref: SessionRef) -> tuple[Session, int, int]:
    return _read_session(uow, ref), uow.turns.prefix_number(ref.session_id), uow.erasure.forget_count(ref.owner)


def _read_session(uow: UnitOfWork, ref: SessionRef) -> Session:
    session = uow.sessions.get(ref.session_id)
    if session is None or session.owner != ref.owner:
        raise NotFound(f"there is no session {ref.session_id!r}")
    return session


def _read_turns_after(uow: UnitOfWork, session: Session, number: int) -> tuple[Turn, ...]:
    newer = (uow.turns.get(session.id, n) for n in range(number + 1, session.last_turn + 1))
    return tuple(turn for turn in newer if turn is not None and turn.status.remembered)


def _read_all(
    uow: UnitOfWork, ref: SessionRef, scopes: RecallScopes
) -> tuple[Session, Prefix | None, View, dict[NoteTarget, tuple[NoteVersion, ...]], int]:
    session = _read_session(uow, ref)
    scope = scopes.of(uow, ref)
    notes = {target: uow.notes.visible(scope, target) for target in NoteTarget}
    return session, uow.turns.prefix(session.id), uow.turns.view(session), notes, uow.erasure.forget_count(ref.owner)
