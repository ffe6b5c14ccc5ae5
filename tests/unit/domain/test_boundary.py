import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everthread.domain import titles
from everthread.domain.boundary import (
    SUMMARY_CHARS_MAX,
    Boundary,
    BoundaryPlan,
    BoundaryState,
    Branch,
    Compress,
    Expire,
    Forget,
    New,
    Opening,
    Refusal,
    Reset,
    Resume,
    Rewind,
    Suspend,
    plan,
    rebase,
)
from everthread.domain.errors import BadBoundary, BadTitle, TitleTaken
from everthread.domain.model import Cause, Fate, HookCall, Session, SessionKey, SessionKind
from everthread.domain.reset_policy import ResetPolicy

KEY = SessionKey.parse("agent:main:telegram:dm:42")
OTHER = SessionKey.parse("agent:main:cli:dm:1")
NOW = 10_000.0
IDLE = ResetPolicy(idle_s=60)
DAILY = ResetPolicy(daily_hour=4)
OLD = Session(
    "old",
    "me",
    KEY,
    SessionKind.CHAT,
    Cause.NEW,
    opened_at=0.0,
    active_at=100.0,
    generation=3,
    floor=2,
    base_turn=2,
    last_turn=9,
)
TARGET = Session("target", "me", KEY, SessionKind.CHAT, Cause.NEW, opened_at=0.0, parent_id="its parent")
HERE = BoundaryState(KEY, "me", OLD, used=True)
NOWHERE = BoundaryState(KEY, "me")
COMPRESS = Compress("old", 3, "what was said", covers_to=7)

FINALIZE = HookCall("on_session_finalize", "old", "telegram")
RESET = HookCall("on_session_reset", "new", "telegram")


def planned(place: BoundaryState, boundary: Boundary) -> BoundaryPlan:
    return plan(place, boundary, new_id="new", now=NOW)


def opened_by(place: BoundaryState, boundary: Boundary) -> Opening:
    opening = planned(place, boundary).opens
    assert opening is not None
    return opening


# --- The table, column by column. One row of `ROWS` is one row of the table for a key with a session. ---

ROWS = {
    "new": (HERE, New()),
    "reset": (HERE, Reset()),
    "idle": (HERE, Expire(IDLE, NOW)),
    "daily": (HERE, Expire(DAILY, NOW + 86_400)),
    "resume": (replace(HERE, target=TARGET), Resume("target")),
    "branch": (HERE, Branch()),
    "compress": (HERE, COMPRESS),
    "rewind": (replace(HERE, visible=(8, 9)), Rewind(2)),
    "suspend": (replace(HERE, served=True), Suspend()),
    "exit": (replace(HERE, served=True), Suspend(close_memory=True)),
    "forget": (HERE, Forget("old")),
}


def rows(**expected: object) -> pytest.MarkDecorator:
    """Parametrize a test with the value of one column in every row of the table."""
    assert expected.keys() == ROWS.keys()
    return pytest.mark.parametrize(
        ("place", "boundary", "expected"), [(*ROWS[row], value) for row, value in expected.items()], ids=list(expected)
    )


@rows(
    new=True, reset=True, idle=True, daily=True, resume=True, branch=True, compress=True,
    rewind=False, suspend=False, exit=True, forget=False,
)  # fmt: skip
def test_column_memory_of_the_bound_session_is_closed(place: BoundaryState, boundary: Boundary, expected: bool) -> None:
    assert planned(place, boundary).closes is expected


@rows(
    new="new", reset="reset", idle="idle", daily="daily", resume=None, branch=None, compress="compressed",
    rewind=None, suspend=None, exit=None, forget="forgotten",
)  # fmt: skip
def test_column_the_bound_session_is_ended(place: BoundaryState, boundary: Boundary, expected: str | None) -> None:
    assert planned(place, boundary).ends == expected


@rows(
    new=None, reset=None, idle=None, daily=None, resume=None, branch=None, compress="compressed",
    rewind=None, suspend=None, exit=None, forget="forgotten",
)  # fmt: skip
def test_column_a_session_of_another_key_is_not_ended(
    place: BoundaryState, boundary: Boundary, expected: str | None
) -> None:
    assert planned(replace(place, other_keys=(OTHER,)), boundary).ends == expected


@rows(
    new=("new", True), reset=("new", True), idle=None, daily=None, resume=("target", False), branch=("new", True),
    compress=("new", True), rewind=None, suspend=None, exit=None, forget=None,
)  # fmt: skip
def test_column_the_opened_session(place: BoundaryState, boundary: Boundary, expected: tuple[str, bool] | None) -> None:
    opening = planned(place, boundary).opens
    assert (opening and (opening.session.id, opening.fresh)) == expected


@rows(
    new=(0, 0, None), reset=(0, 0, None), idle=None, daily=None, resume=(0, 0, None), branch=(2, 9, None),
    compress=(7, 9, "new"), rewind=None, suspend=None, exit=None, forget=None,
)  # fmt: skip
def test_column_the_inherited_transcript(
    place: BoundaryState, boundary: Boundary, expected: tuple[int, int, str | None] | None
) -> None:
    """Check the number of summarised turns, the number of inherited turns, and the owner of the summary."""
    opening = planned(place, boundary).opens
    seen = opening and (opening.session.floor, opening.session.base_turn, opening.session.summary_id)
    assert seen == expected


@rows(
    new=Fate.LATE, reset=Fate.LATE, idle=Refusal.TURN_RUNNING, daily=Refusal.TURN_RUNNING, resume=Fate.LATE,
    branch=Fate.LATE, compress=Refusal.TURN_RUNNING, rewind=Fate.HIDDEN, suspend=Fate.LIVE, exit=Fate.LIVE,
    forget=Fate.LIVE,
)  # fmt: skip
def test_column_a_running_turn(place: BoundaryState, boundary: Boundary, expected: Fate | Refusal) -> None:
    step = planned(replace(place, running=KEY), boundary)
    assert (step.refusal or step.fate) == expected


@rows(
    new=Fate.LIVE, reset=Fate.LIVE, idle=Refusal.TURN_RUNNING, daily=Refusal.TURN_RUNNING, resume=Fate.LIVE,
    branch=Fate.LIVE, compress=Refusal.TURN_RUNNING, rewind=Fate.HIDDEN, suspend=Fate.LIVE, exit=Fate.LIVE,
    forget=Fate.LIVE,
)  # fmt: skip
def test_column_a_running_turn_of_another_key(
    place: BoundaryState, boundary: Boundary, expected: Fate | Refusal
) -> None:
    step = planned(replace(place, running=OTHER, other_keys=(OTHER,)), boundary)
    assert (step.refusal or step.fate) == expected


@rows(
    new=(True, "", "new_session"), reset=(True, "", "reset"), idle=None, daily=None, resume=(False, "old", "resume"),
    branch=(False, "old", "branch"), compress=(False, "old", "compression"), rewind=None, suspend=None, exit=None,
    forget=None,
)  # fmt: skip
def test_column_switch_event(place: BoundaryState, boundary: Boundary, expected: tuple[bool, str, str] | None) -> None:
    opening = planned(place, boundary).opens
    assert (opening and (opening.reset, opening.parent_id, opening.reason.value)) == expected


@rows(
    new=(FINALIZE, RESET), reset=(FINALIZE, RESET), idle=(FINALIZE,), daily=(FINALIZE,), resume=(FINALIZE,),
    branch=(FINALIZE,), compress=(), rewind=(), suspend=(FINALIZE,), exit=(FINALIZE,), forget=(FINALIZE,),
)  # fmt: skip
def test_column_plugin_hooks(place: BoundaryState, boundary: Boundary, expected: tuple[HookCall, ...]) -> None:
    assert planned(place, boundary).hooks == expected


@rows(
    new=(KEY,), reset=(KEY,), idle=(KEY,), daily=(KEY,), resume=(KEY,), branch=(KEY,), compress=(KEY, OTHER),
    rewind=(KEY,), suspend=(), exit=(), forget=(KEY, OTHER),
)  # fmt: skip
def test_column_keys_that_move(place: BoundaryState, boundary: Boundary, expected: tuple[SessionKey, ...]) -> None:
    assert planned(replace(place, other_keys=(OTHER,)), boundary).moves == expected


@rows(
    new=None, reset=None, idle=Cause.IDLE, daily=Cause.DAILY, resume=None, branch=None, compress=None, rewind=None,
    suspend=None, exit=None, forget=None,
)  # fmt: skip
def test_column_the_cause_for_the_next_message(
    place: BoundaryState, boundary: Boundary, expected: Cause | None
) -> None:
    assert planned(place, boundary).pending is expected


@rows(
    new=True, reset=True, idle=False, daily=False, resume=True, branch=True, compress=False, rewind=False,
    suspend=False, exit=True, forget=False,
)  # fmt: skip
def test_column_queued_messages_are_set_aside(place: BoundaryState, boundary: Boundary, expected: bool) -> None:
    assert planned(place, boundary).sets_aside is expected


# --- Rules beside the table ---


@pytest.mark.parametrize("boundary", [New(), Reset()])
def test_a_first_session_calls_no_reset_hook(boundary: Boundary) -> None:
    step = planned(NOWHERE, boundary)
    assert (step.hooks, step.ends) == ((), None)


@pytest.mark.parametrize("pending", [Cause.IDLE, Cause.DAILY])
def test_a_session_after_an_expiry_has_its_cause_and_calls_the_reset_hook(pending: Cause) -> None:
    step = planned(replace(NOWHERE, pending=pending, used=True), New())
    assert step.opens is not None
    assert (step.opens.reset, step.opens.parent_id, step.opens.reason) == (True, "", pending)
    assert step.opens.session.cause is pending
    assert step.hooks == (RESET,)


@pytest.mark.parametrize("boundary", [New(), Reset()])
def test_a_session_after_a_forgotten_one_calls_the_reset_hook(boundary: Boundary) -> None:
    step = planned(replace(NOWHERE, used=True), boundary)
    assert (step.hooks, step.ends) == ((RESET,), None)


def test_a_new_session_has_the_requested_title_and_kind() -> None:
    session = opened_by(HERE, New(title=" My  Project ", kind=SessionKind.CRON)).session
    assert (session.title, session.kind, session.owner, session.key) == ("My Project", SessionKind.CRON, "me", KEY)
    assert (session.opened_at, session.active_at) == (NOW, NOW)


# --- Delegated work ---

DELEGATE = New(kind=SessionKind.SUBAGENT, parent="parent")
PARENT = OLD.replace(id="parent")


@pytest.mark.parametrize("place", [NOWHERE, HERE, replace(NOWHERE, pending=Cause.IDLE)])
def test_a_delegated_session_has_a_parent_and_inherits_nothing(place: BoundaryState) -> None:
    opening = opened_by(replace(place, parent=PARENT), DELEGATE)
    session = opening.session
    assert (session.kind, session.parent_id, session.cause) == (SessionKind.SUBAGENT, "parent", Cause.DELEGATION)
    assert (session.floor, session.base_turn, session.last_turn, session.summary_id) == (0, 0, 0, None)
    assert (opening.parent_id, opening.reset, opening.reason) == ("parent", True, Cause.DELEGATION)
    assert not opening.inherits


@pytest.mark.parametrize(
    ("boundary", "inherits"), [(New(), False), (Reset(), False), (Branch(), True), (COMPRESS, True)]
)
def test_only_branch_and_compression_inherit_turns(boundary: Boundary, inherits: bool) -> None:
    assert opened_by(HERE, boundary).inherits is inherits


@pytest.mark.parametrize("kind", [None, SessionKind.CHAT, SessionKind.CRON])
def test_only_a_delegated_session_has_a_parent(kind: SessionKind | None) -> None:
    with pytest.raises(BadBoundary, match="only delegated work has a parent"):
        planned(replace(HERE, parent=PARENT, kind=SessionKind.SUBAGENT), New(kind=kind, parent="parent"))


@pytest.mark.parametrize(
    "parent", [None, PARENT.replace(kind=SessionKind.SUBAGENT), PARENT.replace(kind=SessionKind.NOTES)]
)
def test_a_delegated_session_cannot_delegate(parent: Session | None) -> None:
    with pytest.raises(BadBoundary, match="can't delegate"):
        planned(replace(NOWHERE, parent=parent), DELEGATE)


@pytest.mark.parametrize("boundary", [New("Taken"), Reset("TAKEN"), Branch("taken")])
def test_a_used_title_is_refused_in_any_case(boundary: Boundary) -> None:
    with pytest.raises(TitleTaken, match="already called"):
        planned(replace(HERE, titles=("taken",)), boundary)


@pytest.mark.parametrize("boundary", [New("\u200b"), Reset("x" * 101), Branch("\n")])
def test_an_invalid_title_is_refused(boundary: Boundary) -> None:
    with pytest.raises(BadTitle):
        planned(HERE, boundary)


@pytest.mark.parametrize("boundary", [Branch(), COMPRESS])
def test_a_child_is_numbered_after_its_parent(boundary: Boundary) -> None:
    named = replace(HERE, session=OLD.replace(title="name"), titles=("name", "name #2"))
    assert opened_by(named, boundary).session.title == "name #3"
    assert opened_by(HERE, boundary).session.title is None


def test_a_branch_may_have_its_own_title() -> None:
    named = replace(HERE, session=OLD.replace(title="name"))
    assert opened_by(named, Branch("another")).session.title == "another"


def test_a_branch_of_a_compressed_session_keeps_its_summary() -> None:
    compressed = replace(HERE, session=OLD.replace(summary_id="old"))
    assert opened_by(compressed, Branch()).session.summary_id == "old"


def test_compression_stores_its_summary() -> None:
    assert opened_by(HERE, COMPRESS).summary == "what was said"


@pytest.mark.parametrize(
    ("target", "found"),
    [("", TARGET), ("target", None), ("", None), ("notes:me", TARGET.replace(id="notes:me", kind=SessionKind.NOTES))],
)
def test_resume_of_an_unknown_session_is_refused(target: str, found: Session | None) -> None:
    assert planned(replace(HERE, target=found), Resume(target)) == BoundaryPlan(refusal=Refusal.NOTHING_THERE)


def test_resume_of_the_current_session_is_refused() -> None:
    assert planned(replace(HERE, target=OLD), Resume("old")) == BoundaryPlan(refusal=Refusal.ALREADY_THERE)


def test_a_branch_has_the_named_session_as_its_parent() -> None:
    assert opened_by(replace(HERE, target=TARGET), Branch(parent="target")).session.parent_id == "target"
    assert opened_by(replace(HERE, target=TARGET), Branch()).session.parent_id == "old"


@pytest.mark.parametrize("boundary", [Branch(), Branch(parent="target")])
def test_a_branch_belongs_to_the_key_that_asked_for_it(boundary: Boundary) -> None:
    elsewhere = replace(HERE, session=OLD.replace(key=OTHER), target=TARGET.replace(key=OTHER))
    assert opened_by(elsewhere, boundary).session.key == KEY


def test_compression_keeps_the_key_of_its_session() -> None:
    assert opened_by(replace(HERE, session=OLD.replace(key=OTHER)), COMPRESS).session.key == OTHER


# --- Scheduled and delegated sessions ---

UNATTENDED = pytest.mark.parametrize("kind", [SessionKind.CRON, SessionKind.SUBAGENT])


@UNATTENDED
@pytest.mark.parametrize("place", [HERE, NOWHERE])
def test_a_person_who_resumes_unattended_work_gets_a_chat_branch(place: BoundaryState, kind: SessionKind) -> None:
    work = OLD.replace(id="target", kind=kind, key=OTHER, title="name", summary_id="older")
    step = planned(replace(place, target=work, titles=("name",)), Resume("target"))
    opening = step.opens
    assert opening is not None
    child = opening.session
    assert (child.id, child.kind, child.key, child.cause) == ("new", SessionKind.CHAT, KEY, Cause.BRANCH)
    assert (child.floor, child.base_turn, child.summary_id, child.title) == (2, 9, "older", "name #2")
    assert (opening.fresh, opening.inherits, opening.reset) == (True, True, False)
    assert (opening.parent_id, opening.reason) == ("target", Cause.BRANCH)
    assert step.hooks == ((FINALIZE,) if place is HERE else ())
    assert step.moves == (KEY,)


@UNATTENDED
@pytest.mark.parametrize("boundary", [Branch(), Branch(parent="target")])
def test_a_person_who_branches_unattended_work_gets_a_chat(boundary: Boundary, kind: SessionKind) -> None:
    place = replace(HERE, session=OLD.replace(kind=kind), target=TARGET.replace(kind=kind))
    assert opened_by(place, boundary).session.kind is SessionKind.CHAT


@UNATTENDED
def test_resume_leaves_unattended_work_that_a_person_was_on(kind: SessionKind) -> None:
    work = OLD.replace(kind=kind)
    opening = opened_by(replace(HERE, session=work, target=work), Resume("old"))
    assert (opening.fresh, opening.session.kind, opening.session.parent_id) == (True, SessionKind.CHAT, "old")


@UNATTENDED
def test_resume_of_unattended_work_from_its_branch_is_refused(kind: SessionKind) -> None:
    place = replace(HERE, target=TARGET.replace(kind=kind), on_branch=True)
    assert planned(place, Resume("target")) == BoundaryPlan(refusal=Refusal.ALREADY_THERE)


@UNATTENDED
def test_a_key_of_unattended_work_keeps_the_kind_of_its_sessions(kind: SessionKind) -> None:
    place = replace(HERE, kind=kind, session=OLD.replace(kind=kind), target=TARGET.replace(kind=kind))
    opening = opened_by(place, Resume("target"))
    assert (opening.fresh, opening.session) == (False, place.target)
    assert opened_by(place, Branch()).session.kind is kind


@pytest.mark.parametrize("boundary", [Resume("target"), Branch(parent="target")])
def test_a_chat_stays_a_chat_at_any_key(boundary: Boundary) -> None:
    place = replace(HERE, kind=SessionKind.CRON, target=TARGET)
    assert opened_by(place, boundary).session.kind is SessionKind.CHAT


def test_resume_without_a_current_session_keeps_the_parent_of_the_target() -> None:
    opening = opened_by(replace(NOWHERE, target=TARGET), Resume("target"))
    assert opening.parent_id == "its parent"
    orphan = opened_by(replace(NOWHERE, target=TARGET.replace(parent_id=None)), Resume("target"))
    assert orphan.parent_id == ""


@pytest.mark.parametrize("boundary", [Branch(), Rewind(), Expire(IDLE, NOW), Suspend(), Suspend(close_memory=True)])
def test_a_boundary_without_a_session_is_refused(boundary: Boundary) -> None:
    assert planned(NOWHERE, boundary) == BoundaryPlan(refusal=Refusal.NOTHING_THERE)


@pytest.mark.parametrize("boundary", [COMPRESS, Forget("old")])
def test_a_boundary_for_a_named_session_is_stale_without_one(boundary: Boundary) -> None:
    assert planned(NOWHERE, boundary) == BoundaryPlan(refusal=Refusal.STALE)


@pytest.mark.parametrize(
    "boundary",
    [
        replace(COMPRESS, generation=2),
        replace(COMPRESS, session_id="other"),
        replace(COMPRESS, forget_count=1),
        Forget("other"),
    ],
)
def test_a_boundary_for_another_state_is_stale(boundary: Boundary) -> None:
    assert planned(HERE, boundary) == BoundaryPlan(refusal=Refusal.STALE)


@pytest.mark.parametrize("covers_to", [-1, 0, 1, 10])
def test_compression_of_missing_turns_is_refused(covers_to: int) -> None:
    with pytest.raises(BadBoundary, match="outside 2..9"):
        planned(HERE, replace(COMPRESS, covers_to=covers_to))


@pytest.mark.parametrize("covers_to", [2, 9])
def test_compression_may_cover_no_new_turn_or_every_turn(covers_to: int) -> None:
    assert opened_by(HERE, replace(COMPRESS, covers_to=covers_to)).session.floor == covers_to


@pytest.mark.parametrize("summary", ["", " \n", "x" * (SUMMARY_CHARS_MAX + 1)])
def test_an_empty_or_too_long_summary_is_refused(summary: str) -> None:
    with pytest.raises(BadBoundary, match="summary"):
        planned(HERE, replace(COMPRESS, summary=summary))


@pytest.mark.parametrize("turns", [0, -3])
def test_rewind_needs_a_positive_number(turns: int) -> None:
    with pytest.raises(BadBoundary, match="from 1"):
        planned(HERE, Rewind(turns))


def test_rewind_hides_turns_and_keeps_the_session() -> None:
    step = planned(replace(HERE, visible=(8, 9)), Rewind(2))
    assert step == BoundaryPlan(moves=(KEY,), stays=True, hides=(8, 9))


def test_a_rewind_counts_the_running_turn_first() -> None:
    running = replace(HERE, running=KEY, visible=(8, 9))
    assert planned(running, Rewind(1)).hides == ()
    assert planned(running, Rewind(2)).hides == (9,)
    assert planned(running, Rewind(3)).hides == (8, 9)
    assert planned(running, Rewind(1)).fate is Fate.HIDDEN


def test_rewind_of_an_empty_session_is_refused_unless_a_turn_runs() -> None:
    assert planned(HERE, Rewind()).refusal is Refusal.NOTHING_THERE
    running = planned(replace(HERE, running=KEY), Rewind())
    assert (running.refusal, running.hides, running.fate) == (None, (), Fate.HIDDEN)


def test_expiry_is_refused_before_it_is_due() -> None:
    assert planned(HERE, Expire(IDLE, 159.9)) == BoundaryPlan(refusal=Refusal.NOT_DUE)
    assert planned(HERE, Expire(ResetPolicy(), NOW)) == BoundaryPlan(refusal=Refusal.NOT_DUE)
    assert planned(HERE, Expire(IDLE, 160.0)).refusal is None


def test_delegated_work_delays_expiry() -> None:
    assert planned(replace(HERE, delegated=True), Expire(IDLE, NOW)) == BoundaryPlan(refusal=Refusal.TURN_RUNNING)


def test_only_a_message_accepted_before_the_deadline_delays_expiry() -> None:
    assert planned(replace(HERE, waiting_since=159.9), Expire(IDLE, NOW)) == BoundaryPlan(refusal=Refusal.WORK_WAITING)
    assert planned(replace(HERE, waiting_since=160.0), Expire(IDLE, NOW)).refusal is None


def test_suspend_finalizes_only_a_session_that_this_process_served() -> None:
    assert planned(HERE, Suspend()) == BoundaryPlan()
    assert planned(HERE, Suspend(close_memory=True)) == BoundaryPlan(closes=True, sets_aside=True)


def test_a_child_is_rebased_on_its_final_parent() -> None:
    child = opened_by(HERE, Branch()).session
    left = OLD.replace(last_turn=11, log_seq=17)
    assert rebase(child, left) == child.replace(base_turn=11, last_turn=11, base_seq=17)


# --- Properties of any state and any boundary ---

sessions = st.builds(
    lambda name, title, turns, floor, parent, kind: Session(
        name, "me", KEY, kind, Cause.NEW, 0.0, parent_id=parent, title=title, generation=2, floor=min(turns, floor),
        last_turn=turns, active_at=100.0,
    ),
    st.sampled_from(["old", "target"]),
    st.sampled_from([None, "name", "name #2", "x" * 100]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([None, "a parent"]),
    st.sampled_from([SessionKind.CHAT, SessionKind.CRON, SessionKind.SUBAGENT]),
)  # fmt: skip
places = st.builds(
    lambda place: place if place.session else replace(place, other_keys=(), running=None, visible=()),
    st.builds(
        BoundaryState,
        st.just(KEY),
        st.just("me"),
        st.none() | sessions,
        st.sampled_from([None, Cause.IDLE, Cause.DAILY]),
        st.booleans(),
        st.sampled_from([(), (OTHER,)]),
        st.sampled_from([None, KEY, OTHER]),
        st.booleans(),
        st.sampled_from([None, 120.0, 5000.0]),
        st.booleans(),
        st.none() | sessions,
        st.booleans(),
        st.sampled_from([(), (1,), (2, 3)]),
        st.sampled_from([(), ("name", "name #2"), ("x" * 100,)]),
        st.sampled_from([SessionKind.CHAT, SessionKind.CRON]),
    ),
)
boundaries: st.SearchStrategy[Boundary] = st.one_of(
    st.builds(New, st.sampled_from(["", "fresh"]), st.sampled_from(list(SessionKind))),
    st.builds(Reset, st.sampled_from(["", "fresh"])),
    st.builds(Resume, st.sampled_from(["", "target"])),
    st.builds(Branch, st.sampled_from(["", "fresh"])),
    st.builds(Compress, st.sampled_from(["old", "target"]), st.integers(1, 3), st.just("said"), st.integers(-1, 10)),
    st.builds(Rewind, st.integers(0, 3)),
    st.builds(Expire, st.sampled_from([IDLE, DAILY, ResetPolicy()]), st.sampled_from([150.0, NOW, NOW + 86_400])),
    st.builds(Suspend, st.booleans()),
    st.builds(Forget, st.sampled_from(["old", "target"])),
)


def tried(place: BoundaryState, boundary: Boundary) -> BoundaryPlan:
    try:
        return planned(place, boundary)
    except BadBoundary:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)


@given(places, boundaries)
def test_a_refusal_changes_nothing_else(place: BoundaryState, boundary: Boundary) -> None:
    step = tried(place, boundary)
    assert step.refusal is None or step == BoundaryPlan(refusal=step.refusal)


@given(places, boundaries)
def test_reset_is_true_only_for_a_new_conversation(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is not None:
        assert opening.reset == isinstance(boundary, New | Reset)
        assert opening.reset == (opening.reason in (Cause.NEW, Cause.RESET, Cause.IDLE, Cause.DAILY))


@given(places, boundaries)
def test_the_parent_id_is_set_only_if_a_conversation_continues(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is not None:
        left = place.session.id if place.session and not opening.inherits else None
        assert opening.parent_id == ("" if opening.reset else left or opening.session.parent_id or "")


@given(places, boundaries)
def test_finalize_names_the_previous_session_and_precedes_reset_of_the_opened_one(
    place: BoundaryState, boundary: Boundary
) -> None:
    step = tried(place, boundary)
    names = [call.hook for call in step.hooks]
    assert names in ([], ["on_session_finalize"], ["on_session_reset"], ["on_session_finalize", "on_session_reset"])
    for call in step.hooks:
        whose = place.session if call.hook == "on_session_finalize" else step.opens and step.opens.session
        assert whose is not None
        assert (call.session_id, call.platform) == (whose.id, "telegram")


@given(places, boundaries)
def test_only_compression_and_forget_move_other_keys(place: BoundaryState, boundary: Boundary) -> None:
    step = tried(place, boundary)
    moved = set(step.moves) - {KEY}
    assert moved <= set(place.other_keys)
    if step.refusal is None:
        assert moved == (set(place.other_keys) if isinstance(boundary, Compress | Forget) else set())


@given(places, boundaries)
def test_a_key_moves_at_most_once_and_every_boundary_but_suspend_moves_it(
    place: BoundaryState, boundary: Boundary
) -> None:
    step = tried(place, boundary)
    assert len(set(step.moves)) == len(step.moves)
    if step.refusal is None:
        assert (KEY in step.moves) == (not isinstance(boundary, Suspend))


@given(places, boundaries)
def test_only_a_bound_session_is_ended_hidden_or_finalized(place: BoundaryState, boundary: Boundary) -> None:
    step = tried(place, boundary)
    if place.session is None:
        assert (step.ends, step.hides, step.stays, step.fate) == (None, (), False, Fate.LIVE)
        assert all(call.hook == "on_session_reset" for call in step.hooks)


@given(places, boundaries)
def test_a_session_is_ended_only_if_every_key_leaves_it(place: BoundaryState, boundary: Boundary) -> None:
    step = tried(place, boundary)
    if step.ends is not None:
        assert place.session is not None
        assert {KEY, *place.other_keys} <= set(step.moves)


@given(places, boundaries)
def test_a_child_inherits_the_current_turns_of_its_parent(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is None or not opening.fresh:
        return
    child, parent = opening.session, place.target if isinstance(boundary, Resume) else place.session
    if child.parent_id is None:
        assert (child.floor, child.base_turn, child.last_turn, child.summary_id) == (0, 0, 0, None)
        return
    assert parent is not None
    assert child.parent_id == parent.id
    assert parent.floor <= child.floor <= child.base_turn == child.last_turn == parent.last_turn
    assert (child.owner, child.key) == (parent.owner, KEY)
    inherited = isinstance(boundary, Compress) or parent.kind is SessionKind.CHAT
    assert child.kind is (parent.kind if inherited else place.kind)


@given(places, boundaries)
def test_an_opened_session_has_an_empty_log_and_no_end(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is not None and opening.fresh:
        session = opening.session
        assert (session.log_seq, session.dirty_seq, session.closed_seq, session.generation) == (0, 0, 0, 0)
        assert (session.ended_at, session.end_reason, session.forgotten_seq) == (None, None, None)
        assert session.id == "new"


@given(places, boundaries)
def test_only_resume_opens_an_existing_session_of_a_chat_or_of_its_own_kind(
    place: BoundaryState, boundary: Boundary
) -> None:
    opening = tried(place, boundary).opens
    if opening is not None:
        target = place.target if isinstance(boundary, Resume) else None
        assert opening.fresh == (target is None or target.kind not in (SessionKind.CHAT, place.kind))
        assert opening.fresh or opening.session == target


@given(places, boundaries)
def test_only_compression_has_a_summary(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is not None:
        assert (opening.summary is not None) == isinstance(boundary, Compress)


@given(places, boundaries)
def test_only_a_rewind_changes_a_running_turn_of_another_key(place: BoundaryState, boundary: Boundary) -> None:
    step = tried(place, boundary)
    if place.running == OTHER and step.refusal is None:
        assert step.fate is (Fate.HIDDEN if isinstance(boundary, Rewind) else Fate.LIVE)


@given(places, boundaries)
def test_the_title_of_an_opened_session_is_unused(place: BoundaryState, boundary: Boundary) -> None:
    opening = tried(place, boundary).opens
    if opening is not None and opening.fresh and opening.session.title is not None:
        assert titles.fold(opening.session.title) not in {titles.fold(title) for title in place.titles}
        assert opening.session.title == titles.clean(opening.session.title)


@given(places, boundaries)
def test_a_plan_is_deterministic(place: BoundaryState, boundary: Boundary) -> None:
    assert tried(place, boundary) == tried(place, boundary)
