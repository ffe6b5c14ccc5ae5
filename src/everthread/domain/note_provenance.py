"""Find the note versions that derive from a forgotten session, and the notes without them. Pure rules on versions.

A writing is the set of versions that one turn or one review writes. Each of its texts may derive from every note that
the same writing replaced or removed, because notes are merged and condensed in this way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from everthread.domain.model import FORGOTTEN, NoteAction, NoteVersion
from everthread.domain.review_window import ReviewWindow

Writing = tuple[str, str]
"""A session id, and the id of a turn or the mark of a review in it."""


class NoteRestore(Struct, frozen=True):
    """A note to restore to an earlier version, or to remove."""

    last: NoteVersion
    to: NoteVersion | None
    """The version to restore. None removes the note."""
    places: tuple[str, ...]
    """The other sessions that wrote the note, the latest first. Memory providers may have received it from them."""


class NoteRepair(Struct, frozen=True):
    """The changes that forgetting a session makes to the owner's notes, beyond the versions it wrote itself."""

    tainted: tuple[NoteVersion, ...] = ()
    """Versions by other sessions that may contain text of the session."""
    back: tuple[NoteRestore, ...] = ()
    """Notes to restore or remove."""
    writings: tuple[Writing, ...] = ()
    """Writings of other sessions that lose text. Their turns have to be reviewed again."""


def plan_repair(session_id: str, versions: Sequence[NoteVersion]) -> NoteRepair:
    """Return the changes that remove every trace of the session. `versions` are all note versions of the owner."""
    notes = _by_note(versions)
    if not any(v.session_id == session_id for v in versions):
        return NoteRepair()
    own = {_name(v) for v in versions if v.session_id == session_id and _has_words(v)}
    gone = _tainted(own, notes, versions)
    tainted = tuple(v for v in versions if _name(v) in gone - own)
    return NoteRepair(
        tainted,
        tuple(_back(notes, gone, session_id)),
        tuple(sorted({writing for v in tainted if (writing := _writing(v))})),
    )


def _tainted(own: set[_Name], notes: _Notes, versions: Sequence[NoteVersion]) -> set[_Name]:
    """Return the names of the versions that may contain text of those in `own`, including `own`."""
    gone = set(own)
    sources = [v for v in versions if _name(v) in gone]
    while True:
        merging = {
            writing
            for v in versions
            if (writing := _writing(v)) and any(_name(earlier) in gone for earlier in _before(v, notes)[-1:])
        }
        more = [
            v
            for v in versions
            if _name(v) not in gone
            and _has_words(v)
            and (_follows(v, gone, notes) or _writing(v) in merging or _repeats(v, sources))
        ]
        if not more:
            return gone
        gone |= {_name(v) for v in more}
        sources += more


def _follows(version: NoteVersion, gone: set[_Name], notes: _Notes) -> bool:
    """Return True if the previous version is tainted, unless this one repeats an earlier untainted text."""
    before = _before(version, notes)
    says_again = any(_name(v) not in gone and v.content == version.content for v in before)
    return not says_again and any(_name(v) in gone for v in before[-1:])


def _repeats(version: NoteVersion, sources: Iterable[NoteVersion]) -> bool:
    """Return True if the version contains the text of an earlier source. Versions written by hand never do."""
    return version.turn_id is not None and any(v.at <= version.at and v.content in version.content for v in sources)


def _back(notes: _Notes, gone: set[_Name], session_id: str) -> Iterable[NoteRestore]:
    """Yield the notes whose last version is erased, was replaced by an erased merge, or was removed by the session.

    The session's log is erased, so memory providers learn of these changes only in this way. Notes that only the
    session wrote are left out: providers delete them with the session.
    """
    in_force = _in_force(notes, gone)
    for note in notes.values():
        last = note[-1]
        clean = [v for v in note if _has_words(v) and _name(v) not in gone]
        places = tuple(dict.fromkeys(v.session_id for v in reversed(note) if v.session_id != session_id))
        if clean and (_name(last) in gone or _is_stood_for(last, in_force)):
            yield NoteRestore(last, clean[-1], places)
        elif places and (_name(last) in gone or last.session_id == session_id):
            yield NoteRestore(last, None, places)


def _in_force(notes: _Notes, gone: set[_Name]) -> set[Writing]:
    """Return the writings of erased versions that a current note still contains, directly or through a merge."""
    in_force: set[Writing] = set()
    while True:
        said = [note for note in notes.values() if _name(note[-1]) in gone or _is_stood_for(note[-1], in_force)]
        now = {writing for note in said for v in note if _name(v) in gone and (writing := _writing(v))}
        if now == in_force:
            return in_force
        in_force = now


def _is_stood_for(last: NoteVersion, in_force: set[Writing]) -> bool:
    """Return True if a review removed the note in favour of merged notes. A removal by a user is not undone."""
    return (
        last.action is NoteAction.REMOVE
        and ReviewWindow.from_mark(last.turn_id) is not None
        and _writing(last) in in_force
    )


# --- Versions --------------------------------------------------------------------------------------------------------

_Name = tuple[str, int]
_Notes = dict[str, list[NoteVersion]]


def _name(version: NoteVersion) -> _Name:
    return version.note_id, version.version


def _has_words(version: NoteVersion) -> bool:
    return version.action is not NoteAction.REMOVE and version.content != FORGOTTEN


def _writing(version: NoteVersion) -> Writing | None:
    return (version.session_id, version.turn_id) if version.turn_id else None


def _by_note(versions: Sequence[NoteVersion]) -> _Notes:
    notes: defaultdict[str, list[NoteVersion]] = defaultdict(list)
    for version in sorted(versions, key=_name):
        notes[version.note_id].append(version)
    return dict(notes)


def _before(version: NoteVersion, notes: _Notes) -> list[NoteVersion]:
    """Return the earlier versions of the note that have text, the oldest first."""
    return [v for v in notes[version.note_id] if v.version < version.version and _has_words(v)]
