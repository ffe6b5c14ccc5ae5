from everthread.domain.model import Binding, Cause, ChatType, Session, SessionKey, SessionKind
from everthread.store.unit_of_work import UnitOfWork


def test_a_key_is_on_the_session_it_was_bound_to(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    assert uow.sessions.at(key) == (None, None)
    uow.sessions.bind(Binding(key, "ann", session.id, 3))
    ref = uow.sessions.ref(key)
    assert ref is not None
    assert (ref.session_id, ref.epoch, ref.owner) == (session.id, 3, "ann")
    assert uow.sessions.keys_on(session.id) == (key,)


def test_a_boundary_needs_to_know_of_all_keys_on_a_session(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    others = [SessionKey("main", "telegram", ChatType.DM, chat) for chat in ("1", "2")]
    for bound in (key, *others):
        uow.sessions.bind(Binding(bound, "ann", session.id, 1))
    state = uow.sessions.key_state(key)
    assert state.session == session
    assert state.other_keys == tuple(others)
    assert (state.running, state.awaited, state.timer_at) == (None, False, None)


def test_the_owners_keys_without_a_session_come_last(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    unbound = SessionKey("main", "telegram", ChatType.DM, "1")
    uow.sessions.bind(Binding(unbound, "ann", None, 1))
    uow.sessions.bind(Binding(key, "ann", session.id, 1))
    assert uow.sessions.keys_of("ann") == (key, unbound)


def test_the_tip_is_the_newest_continuation(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    assert uow.sessions.tip(session.id) == session
    for number, parent in ((2, "s1"), (3, "s2")):
        uow.sessions.add(Session(f"s{number}", "ann", key, SessionKind.CHAT, Cause.COMPRESSION, 1.0, parent))
    tip = uow.sessions.tip(session.id)
    assert tip is not None
    assert tip.id == "s3"
