from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.store.derived_text import WRITTEN
from everthread.store.unit_of_work import UnitOfWork


def version(number: int, action: NoteAction, content: str) -> NoteVersion:
    return NoteVersion("n1", number, "ann", NoteTarget.MEMORY, action, content, "s1", None, float(number))


def test_the_newest_version_is_current_until_the_note_is_removed(uow: UnitOfWork) -> None:
    uow.derived.put_note(version(1, NoteAction.ADD, "likes tea"), WRITTEN)
    second = version(2, NoteAction.REPLACE, "likes coffee")
    uow.derived.put_note(second, WRITTEN)
    assert uow.notes.current("ann", NoteTarget.MEMORY) == (second,)
    uow.derived.put_note(version(3, NoteAction.REMOVE, ""), WRITTEN)
    assert uow.notes.current("ann", NoteTarget.MEMORY) == ()
    assert uow.notes.newest("n1") == 3
    assert [note.version for note in uow.notes.history("ann", 2)] == [3, 2]
