from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.store.unit_of_work import UnitOfWork


def version(number: int, action: NoteAction, content: str) -> NoteVersion:
    return NoteVersion("n1", number, "ann", NoteTarget.MEMORY, action, content, "s1", None, float(number))


def test_the_newest_version_is_current_until_the_note_is_removed(uow: UnitOfWork) -> None:
    uow.notes.put(version(1, NoteAction.ADD, "likes tea"))
    second = version(2, NoteAction.REPLACE, "likes coffee")
    uow.notes.put(second)
    assert uow.notes.current("ann", NoteTarget.MEMORY) == (second,)
    uow.notes.put(version(3, NoteAction.REMOVE, ""))
    assert uow.notes.current("ann", NoteTarget.MEMORY) == ()
    assert uow.notes.newest("n1") == 3
    assert [note.version for note in uow.notes.history("ann", 2)] == [3, 2]
