"""Find the note versions that derive from a forgotten session, and the notes without them. Pure rules on versions.

A writing is the set of versions that one turn or one review writes. Each of its texts may derive from every note that
the same writing replaced or removed, because notes are merged and condensed in this way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from everthread.domain.model import FORGOTTEN, NoteAction, NoteAuthor, NoteVersion
from everthread.domain.recall_scope import GROUP_PREFIX
from everthread.domain.review_window import ReviewWindow

IMPORTED_PREFIX = "hermes-"
"""The ids of notes from Hermes begin with it."""
NOTES_SESSION = "notes:"
"""The ids of the sessions for notes that belong to no conversation begin with it."""
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
    restores: tuple[NoteRestore, ...] = ()
    """Notes to restore or remove."""
    writings: tuple[Writing, ...] = ()
    """Writings of other sessions that lose text. Their turns have to be reviewed again."""


def author_of(version: NoteVersion) -> NoteAuthor:
    """Return the author of a version. An older version names only the turn or review that wrote it."""
    if version.author is not None:
        return version.author
    if version.turn_id is None:
        return NoteAuthor.IMPORT if version.note_id.startswith(IMPORTED_PREFIX) else NoteAuthor.OWNER
    return NoteAuthor.REVIEW if ReviewWindow.from_mark(version.turn_id) else NoteAuthor.TOOL


def is_owners(version: NoteVersion) -> bool:
    """Return true if the owner wrote the version themselves, so that it has authority in a prompt.

    Any member of a group may write its notes, so a note of a group has it only from the operator's file.
    """
    author = author_of(version)
    return author is NoteAuthor.OPERATOR or (author is NoteAuthor.OWNER and not version.owner.startswith(GROUP_PREFIX))


def plan_repair(session_id: str, versions: Sequence[NoteVersion]) -> NoteRepair:
    """Return the changes that remove every trace of the session. `versions` are all note versions of the owner."""
    notes = _group_by_note(versions)
    if not any(v.session_id == session_id for v in versions):
        return NoteRepair()
    own = {_version_id(v) for v in versions if v.session_id == session_id and _has_text(v)}
    erased = _find_tainted(own, notes, versions)
    tainted = tuple(v for v in versions if _version_id(v) in erased - own)
    return NoteRepair(
        tainted,
        tuple(_find_restores(notes, erased, session_id)),
        tuple(sorted({writing for v in tainted if (writing := _writing(v))})),
    )


def _find_tainted(own: set[_VersionId], notes: _Notes, versions: Sequence[NoteVersion]) -> set[_VersionId]:
    """Return the names of the versions that may contain text of those in `own`, including `own`."""
    erased = set(own)
    sources = [v for v in versions if _version_id(v) in erased]
    while True:
        merging = {
            writing
            for v in versions
            if (writing := _writing(v))
            and any(_version_id(earlier) in erased for earlier in _earlier_versions(v, notes)[-1:])
        }
        more = [
            v
            for v in versions
            if _version_id(v) not in erased
            and _has_text(v)
            and (_follows(v, erased, notes) or _writing(v) in merging or _repeats(v, sources))
        ]
        if not more:
            return erased
        erased |= {_version_id(v) for v in more}
        sources += more


def _follows(version: NoteVersion, erased: set[_VersionId], notes: _Notes) -> bool:
    """Return True if the previous version is tainted, unless this one repeats an earlier untainted text."""
    before = _earlier_versions(version, notes)
    repeats_clean = any(_version_id(v) not in erased and v.content == version.content for v in before)
    return not repeats_clean and any(_version_id(v) in erased for v in before[-1:])


def _repeats(version: NoteVersion, sources: Iterable[NoteVersion]) -> bool:
    """Return True if the version contains the text of an earlier source. Versions written by hand never do."""
    return version.turn_id is not None and any(v.at <= version.at and v.content in version.content for v in sources)


def _find_restores(notes: _Notes, erased: set[_VersionId], session_id: str) -> Iterable[NoteRestore]:
    """Yield the notes whose last version is erased, was replaced by an erased merge, or was removed by the session.

    The session's log is erased, so memory providers learn of these changes only in this way. Notes that only the
    session wrote are left out: providers delete them with the session.
    """
    effective = _find_effective(notes, erased)
    for note in notes.values():
        last = note[-1]
        clean = [v for v in note if _has_text(v) and _version_id(v) not in erased]
        places = tuple(dict.fromkeys(v.session_id for v in reversed(note) if v.session_id != session_id))
        if clean and (_version_id(last) in erased or _is_merged_into(last, effective)):
            yield NoteRestore(last, clean[-1], places)
        elif places and (_version_id(last) in erased or last.session_id == session_id):
            yield NoteRestore(last, None, places)


def _find_effective(notes: _Notes, erased: set[_VersionId]) -> set[Writing]:
    """Return the writings of erased versions that a current note still contains, directly or through a merge."""
    effective: set[Writing] = set()
    while True:
        kept = [
            note for note in notes.values() if _version_id(note[-1]) in erased or _is_merged_into(note[-1], effective)
        ]
        now = {writing for note in kept for v in note if _version_id(v) in erased and (writing := _writing(v))}
        if now == effective:
            return effective
        effective = now


def _is_merged_into(last: NoteVersion, effective: set[Writing]) -> bool:
    """Return True if a review removed the note in favour of merged notes. A removal by a user is not undone."""
    return (
        last.action is NoteAction.REMOVE
        and ReviewWindow.from_mark(last.turn_id) is not None
        and _writing(last) in effective
    )


# --- Versions --------------------------------------------------------------------------------------------------------

_VersionId = tuple[str, int]
_Notes = dict[str, list[NoteVersion]]


def _version_id(version: NoteVersion) -> _VersionId:
    return version.note_id, version.version


def _has_text(version: NoteVersion) -> bool:
    return version.action is not NoteAction.REMOVE and version.content != FORGOTTEN


def _writing(version: NoteVersion) -> Writing | None:
    return (version.session_id, version.turn_id) if version.turn_id else None


def _group_by_note(versions: Sequence[NoteVersion]) -> _Notes:
    notes: defaultdict[str, list[NoteVersion]] = defaultdict(list)
    for version in sorted(versions, key=_version_id):
        notes[version.note_id].append(version)
    return dict(notes)


def _earlier_versions(version: NoteVersion, notes: _Notes) -> list[NoteVersion]:
    """Return the earlier versions of the note that have text, the oldest first."""
    return [v for v in notes[version.note_id] if v.version < version.version and _has_text(v)]
