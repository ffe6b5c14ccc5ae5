from msgspec.structs import replace

from everthread.domain.model import Session
from everthread.store.compression_pauses import CompressionPause
from everthread.store.unit_of_work import UnitOfWork


def test_a_pause_is_replaced_and_ended(uow: UnitOfWork, session: Session) -> None:
    pause = CompressionPause(session.id, "small", 1, 10.0, "too little saved")
    uow.compression_pauses.put(pause)
    uow.compression_pauses.put(replace(pause, poor=2))
    assert uow.compression_pauses.get(session.id) == replace(pause, poor=2)
    uow.compression_pauses.drop(session.id)
    assert uow.compression_pauses.get(session.id) is None
