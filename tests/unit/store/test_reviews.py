from everthread.domain.model import Session
from everthread.domain.review_window import Review, ReviewState, ReviewWindow
from everthread.store.unit_of_work import UnitOfWork


def test_a_review_is_claimed_by_one_live_process(uow: UnitOfWork, session: Session) -> None:
    uow.reviews.add(session.id, ReviewWindow(1, 5), 1.0)
    uow.leases.keep_alive("p1", 1.0, 30.0)
    assert uow.reviews.claim("p1", 2.0) == (session.id, ReviewWindow(1, 5), 1)
    assert uow.reviews.claim("p2", 3.0) is None
    # The lease of its holder has expired.
    assert uow.reviews.claim("p2", 40.0) == (session.id, ReviewWindow(1, 5), 2)
    assert not uow.reviews.is_held(Review(session.id, ReviewWindow(1, 5), 1, 0))
    assert uow.reviews.is_held(Review(session.id, ReviewWindow(1, 5), 2, 0))


def test_only_a_stopped_review_is_queued_again(uow: UnitOfWork, session: Session) -> None:
    uow.reviews.add(session.id, ReviewWindow(1, 5), 1.0)
    uow.reviews.stop(session.id, ReviewWindow(5, 9))
    assert uow.reviews.reviewed_to(session.id) == 0
    uow.reviews.add(session.id, ReviewWindow(1, 5), 7.0)
    [row] = uow.reviews.of_session(session.id)
    assert (row.state, row.due_at) == (ReviewState.WAITING, 7.0)
    uow.reviews.add(session.id, ReviewWindow(1, 5), 8.0)
    assert uow.reviews.of_session(session.id) == (row,)
