"""Mem0's store of vectors in files that are never torn, never lost, and hold an entry once. Part of the child process.

Mem0's own store writes two files over the old ones at each step, says nothing if that fails, and begins anew, empty, if
they can't be read. Here a request is written when it is done, wholly or not at all; both files are replaced under a
lock, and whoever is killed in between has it finished by the next one. They stay as Mem0 writes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

Changes = list[tuple[str, Any]]


class Unreadable(Exception):
    """The files are not what they should be."""


class Shelf:
    """What comes before Mem0's `FAISS` in `made_of`, which can't be imported where this is checked."""

    faiss: ClassVar[Any]
    path: str
    collection_name: str
    index: Any
    docstore: dict[str, dict[str, Any]]
    index_to_id: dict[int, str]

    def __init__(self, collection_name: str, path: str, **more: Any) -> None:
        self._inside = threading.RLock()
        self._mine = threading.local()
        self._stamp: tuple[int, int] | None = None
        self._is_locked = False
        cast(Any, super()).__init__(collection_name=collection_name, path=path, **more)
        # It makes an index of a size it only guesses; the first vector tells.
        self._begin_anew()

    @property
    def _mem0(self) -> Any:
        return super()

    # What Mem0 does in the course of a request ----------------------------------------------------------------

    def insert(self, vectors: Any, payloads: Any = None, ids: Any = None) -> None:
        self._changes.append(("insert", (vectors, payloads, ids)))

    def update(self, vector_id: str, vector: Any = None, payload: Any = None) -> None:
        self._changes.append(("update", (vector_id, vector, payload)))

    def delete(self, vector_id: str) -> None:
        self._changes.append(("delete", (vector_id,)))

    def search(self, query: str, vectors: Any, top_k: int = 5, filters: Any = None) -> Any:
        with self._inside:
            self._refresh()
            if not self.index_to_id:
                return []
            self._refuse_other_size(len(vectors[0] if isinstance(vectors[0], list) else vectors))
            # It looks at the nearest few, and leaves out those that do not fit: there may be others further off.
            looked_at = top_k
            while True:
                found = self._mem0.search(query, vectors, looked_at, filters)[:top_k]
                if len(found) == top_k or looked_at >= len(self.index_to_id):
                    return found
                looked_at *= 4

    def list(self, filters: Any = None, top_k: int = 100) -> Any:
        with self._inside:
            self._refresh()
            return self._mem0.list(filters, top_k) if self.index is not None else [[]]

    def get(self, vector_id: str) -> Any:
        with self._inside:
            self._refresh()
            return self._mem0.get(vector_id) if self.index is not None else None

    # What is ours ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Of a request; what another one in this thread has left is nobody's."""
        self._mine.changes = []

    def holds(self, **about: Any) -> bool:
        return bool(self.list(about, 1)[0])

    def commit(self, **once: Any) -> None:
        """Write what the request has changed. Nothing is inserted if something with this payload is there."""
        changes, self._mine.changes = self._changes, []
        if not changes:
            return
        with self._inside, self._locked():
            self._refresh()
            is_there = bool(once) and self.holds(**once)
            try:
                for what, arguments in changes:
                    if what != "insert" or not is_there:
                        self._apply(what, arguments)
                self._write()
            except BaseException:
                # What is in memory now is no longer what is in the files.
                self._stamp = None
                self._begin_anew()
                raise

    def remove(self, ids: set[str]) -> None:
        """All at once: Mem0's own way writes the whole for each."""
        with self._inside, self._locked():
            self._refresh()
            if ids & self.docstore.keys():
                self._drop(ids)
                self._write()

    def unlink(self, ids: set[str]) -> None:
        """Of a shelf of entities: nothing leads to these memories any more, and what led to them alone goes."""
        with self._inside, self._locked():
            self._refresh()
            for payload in self.docstore.values():
                payload["linked_memory_ids"] = [one for one in payload.get("linked_memory_ids", ()) if one not in ids]
            alone = {one for one, payload in self.docstore.items() if not payload["linked_memory_ids"]}
            if self.index is not None:
                self._drop(alone)
                self._write()

    # ----------------------------------------------------------------------------------------------------------

    @property
    def _changes(self) -> Changes:
        if not hasattr(self._mine, "changes"):
            self.begin()
        return self._mine.changes

    def _apply(self, what: str, arguments: Any) -> None:
        if what == "insert":
            vectors = arguments[0]
            if self.index is None:
                self.index = self.faiss.IndexFlatIP(len(vectors[0]))
            self._refuse_other_size(len(vectors[0]))
            self._mem0.insert(*arguments)
        elif what == "delete":
            self._mem0.delete(*arguments)
        else:
            vector_id, vector, payload = arguments
            if vector is not None:
                self._drop({vector_id})
                self._mem0.insert([vector], [payload], [vector_id])
            elif vector_id in self.docstore:
                self.docstore[vector_id] = payload

    def _drop(self, ids: set[str]) -> None:
        kept = [place for place, one in sorted(self.index_to_id.items()) if one not in ids]
        vectors = self.index.reconstruct_n(0, self.index.ntotal)[kept] if kept else None
        self.index_to_id = {new: self.index_to_id[old] for new, old in enumerate(kept)}
        self.docstore = {one: payload for one, payload in self.docstore.items() if one not in ids}
        self.index.reset()
        if kept:
            self.index.add(vectors)

    def _refuse_other_size(self, size: int) -> None:
        if self.index.d != size:
            raise Unreadable(
                f"what is there was embedded in {self.index.d} numbers each, and the embedder now gives {size}; "
                "name the embedder of before, or move the folder away and copy anew"
            )

    # Files ----------------------------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        self.index, self.docstore, self.index_to_id = None, {}, {}

    def create_col(self, name: str, distance: str = "") -> Any:
        return self

    def _load(self, index_path: str, docstore_path: str) -> None:
        """Not while it is made: when it is first asked."""

    def _save(self) -> None:
        """Not at each step."""

    @property
    def _words(self) -> str:
        return f"{self.path}/{self.collection_name}.json"

    @property
    def _vectors(self) -> str:
        return f"{self.path}/{self.collection_name}.faiss"

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Against other processes: another Everthread on the same home has a child of its own."""
        if self._is_locked:
            yield
            return
        os.makedirs(self.path, exist_ok=True)
        with open(f"{self.path}/{self.collection_name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    def _refresh(self) -> None:
        """Read the files, if they are not the ones that were read or written last."""
        if self._stamp is not None and self._stamp == _stamp(self._words):
            return
        if self._stamp is None and not os.path.isdir(self.path):
            return
        with self._locked():
            self._finish()
            self._stamp = _stamp(self._words)
            if self._stamp is None:
                self._begin_anew()
            else:
                self._read()

    def _finish(self) -> None:
        """What somebody was killed in.

        The new words are written first, and are the first to take the old ones' place: from then on it counts. So
        new vectors alone belong to words that are in place already.
        """
        new_words, new_vectors = f"{self._words}.new", f"{self._vectors}.new"
        if os.path.exists(new_vectors) and not os.path.exists(new_words):
            os.replace(new_vectors, self._vectors)
        for left in (new_vectors, new_words):
            if os.path.exists(left):
                os.remove(left)

    def _read(self) -> None:
        try:
            with open(self._words, encoding="utf-8") as file:
                held = json.load(file)
            self.index = self.faiss.read_index(self._vectors)
            self.docstore = held["docstore"]
            self.index_to_id = {int(place): one for place, one in held["index_to_id"].items()}
        except Exception as error:
            self._stamp = None
            self._begin_anew()
            raise Unreadable(f"{self.path} can't be read ({type(error).__name__}); bring it back") from error
        if not self.index.ntotal == len(self.index_to_id) == len(self.docstore):
            self._stamp = None
            self._begin_anew()
            raise Unreadable(f"the files in {self.path} do not belong together; bring them back from a copy")

    def _write(self) -> None:
        if self.index is None:
            return
        held = {"docstore": self.docstore, "index_to_id": {str(k): v for k, v in self.index_to_id.items()}}
        with open(f"{self._words}.new", "w", encoding="utf-8") as file:
            json.dump(held, file)
            file.flush()
            os.fsync(file.fileno())
        self.faiss.write_index(self.index, f"{self._vectors}.new")
        _synced(f"{self._vectors}.new")
        os.replace(f"{self._words}.new", self._words)
        os.replace(f"{self._vectors}.new", self._vectors)
        _synced(self.path)
        self._stamp = _stamp(self._words)


def made_of(base: Any, faiss: Any) -> Any:
    """The class, of Mem0's `FAISS` and the module `faiss`."""
    return type("Shelf", (Shelf, base), {"faiss": faiss})


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _synced(path: str) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
