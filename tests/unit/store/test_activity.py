from everthread.domain.model import Session
from everthread.store.activity import FeedPosition
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork


def test_the_feed_holds_the_owners_boundaries_after_a_position(uow: UnitOfWork, session: Session) -> None:
    for owner in ("ann", "ben", "ann"):
        uow.sessions.add_boundary(BoundaryRow("new", session.key, owner, None, session.id, 1, "ann", 1.0))
    events, position = uow.activity.after("ann", FeedPosition(), 100)
    assert len(events) == 2
    assert position == uow.activity.end()
    assert uow.activity.after("ann", position, 100) == ((), position)


def test_a_window_limits_the_rows_that_are_read(uow: UnitOfWork, session: Session) -> None:
    for _ in range(3):
        uow.sessions.add_boundary(BoundaryRow("new", session.key, "ann", None, session.id, 1, "ann", 1.0))
    events, position = uow.activity.after("ann", FeedPosition(), 2)
    assert (len(events), position.boundary) == (2, 2)
