"""Which words of notes may come from a session, and what the notes are without it. Pure rules on versions.

What somebody writes in one go - a turn, or a review of some turns - is a writing. Its words may be made of whatever it
replaced or removed along with them: that is how notes are merged and condensed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from everthread.domain.model import FORGOTTEN, NoteAction, NoteVersion
from everthread.domain.review_window import Window

Writing = tuple[str, str]
"""A session, and the turn or the mark of a review in it."""


class Back(Struct, frozen=True):
    """A note that is not any more what it was."""

    last: NoteVersion
    to: NoteVersion | None
    """What it says again; it is removed if that is none."""
    places: tuple[str, ...]
    """The other sessions that it was written in, the last one first: whoever mirrors it may have it from there."""


class Mending(Struct, frozen=True):
    """What forgetting a session means for the owner's notes, beyond those that were written in it."""

    tainted: tuple[NoteVersion, ...] = ()
    """Versions that other sessions have written, and that may hold its words."""
    back: tuple[Back, ...] = ()
    writings: tuple[Writing, ...] = ()
    """Those of other sessions that lose words by it: what they had learnt themselves is to be learnt again."""


def without(session_id: str, versions: Sequence[NoteVersion]) -> Mending:
    """As if the session had never been; `versions` are all of the owner's."""
    notes = _by_note(versions)
    if not any(v.session_id == session_id for v in versions):
        return Mending()
    own = {_name(v) for v in versions if v.session_id == session_id and _has_words(v)}
    gone = _tainted(own, notes, versions)
    tainted = tuple(v for v in versions if _name(v) in gone - own)
    return Mending(
        tainted,
        tuple(_back(notes, gone, session_id)),
        tuple(sorted({writing for v in tainted if (writing := _writing(v))})),
    )


def _tainted(own: set[_Name], notes: _Notes, versions: Sequence[NoteVersion]) -> set[_Name]:
    """The versions that may hold the words of those in `own`, and these."""
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
    """Whether the note said something tainted before; not if it says again what it had said before that."""
    before = _before(version, notes)
    says_again = any(_name(v) not in gone and v.content == version.content for v in before)
    return not says_again and any(_name(v) in gone for v in before[-1:])


def _repeats(version: NoteVersion, sources: Iterable[NoteVersion]) -> bool:
    """Word for word. What a person wrote by hand is their own."""
    return version.turn_id is not None and any(v.at <= version.at and v.content in version.content for v in sources)


def _back(notes: _Notes, gone: set[_Name], session_id: str) -> Iterable[Back]:
    """Where a note's last words go, a review has removed it in favour of words that go, or the session has removed it:

    whoever was not told of that yet never will be. Of notes that were written in it alone, they let go by themselves.
    """
    in_force = _in_force(notes, gone)
    for note in notes.values():
        last = note[-1]
        clean = [v for v in note if _has_words(v) and _name(v) not in gone]
        places = tuple(dict.fromkeys(v.session_id for v in reversed(note) if v.session_id != session_id))
        if clean and (_name(last) in gone or _is_stood_for(last, in_force)):
            yield Back(last, clean[-1], places)
        elif places and (_name(last) in gone or last.session_id == session_id):
            yield Back(last, None, places)


def _in_force(notes: _Notes, gone: set[_Name]) -> set[Writing]:
    """Those whose words go, and are still said by some note: perhaps by one that was made of theirs."""
    in_force: set[Writing] = set()
    while True:
        said = [note for note in notes.values() if _name(note[-1]) in gone or _is_stood_for(note[-1], in_force)]
        now = {writing for note in said for v in note if _name(v) in gone and (writing := _writing(v))}
        if now == in_force:
            return in_force
        in_force = now


def _is_stood_for(last: NoteVersion, in_force: set[Writing]) -> bool:
    """Whether a review has removed the note because others say it. What a person had removed stays so."""
    return last.action is NoteAction.REMOVE and Window.marked(last.turn_id) is not None and _writing(last) in in_force


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
    """What the note had said before, the oldest first."""
    return [v for v in notes[version.note_id] if v.version < version.version and _has_words(v)]
