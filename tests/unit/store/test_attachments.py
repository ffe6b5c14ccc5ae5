from everthread.domain.media import Media
from everthread.domain.model import Inbound, SessionKey
from everthread.store.attachments import media_in, media_text
from everthread.store.unit_of_work import UnitOfWork

PHOTO = Media("image", handle="file-7", path="42/photo.jpg")


def test_media_read_back_and_a_damaged_column_is_empty() -> None:
    assert media_in(media_text((PHOTO,))) == (PHOTO,)
    assert media_in(media_text(())) == ()
    assert media_in('[{"cut') == ()


def test_files_that_will_not_be_fetched_are_removed(uow: UnitOfWork, key: SessionKey) -> None:
    row, _ = uow.inbox.accept(Inbound(key, "ann", "see this", media=(PHOTO,)), 1.0)
    uow.inbox.set_aside(row.id, "s1", "t1")
    assert uow.attachments.discarded() == ("42/photo.jpg",)
    uow.attachments.mark_removed("42/photo.jpg")
    assert uow.attachments.discarded() == ()
