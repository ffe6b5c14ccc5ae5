"""Mem0's vector store on files with atomic writes. Runs in the child process.

Mem0's own store overwrites two files at each step, ignores errors, and starts empty if they can't be read. This one
writes the changes of a request at its end, completely or not at all: both files are replaced under a lock, and an
interrupted replacement is finished by the next process. The format of the files is Mem0's.

Tested with the real library in tests/servers/test_mem0_files.py.
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


class StoreUnreadable(Exception):
    """The files are damaged, or were made with another embedder."""


class DurableVectorStore:
    """Overrides of Mem0's `FAISS`. That is added as a base by `store_class`, since not every Python has it."""

    faiss: ClassVar[Any]
    path: str
    collection_name: str
    index: Any
    docstore: dict[str, dict[str, Any]]
    index_to_id: dict[int, str]

    def __init__(self, collection_name: str, path: str, **more: Any) -> None:
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._stamp: tuple[int, int] | None = None
        self._is_locked = False
        cast(Any, super()).__init__(collection_name=collection_name, path=path, **more)
        # Mem0 guesses the dimension of the index; the first vector tells.
        self._clear()

    @property
    def _mem0(self) -> Any:
        return super()

    # Called by Mem0 during a request ---------------------------------------------------------------------------

    def insert(self, vectors: Any, payloads: Any = None, ids: Any = None) -> None:
        self._changes.append(("insert", (vectors, payloads, ids)))

    def update(self, vector_id: str, vector: Any = None, payload: Any = None) -> None:
        self._changes.append(("update", (vector_id, vector, payload)))

    def delete(self, vector_id: str) -> None:
        self._changes.append(("delete", (vector_id,)))

    def search(self, query: str, vectors: Any, top_k: int = 5, filters: Any = None) -> Any:
        with self._lock:
            self._refresh()
            if not self.index_to_id:
                return []
            self._check_dimension(len(vectors[0] if isinstance(vectors[0], list) else vectors))
            # Mem0 filters the nearest few after the search: fetch more until enough of them match.
            fetched = top_k
            while True:
                found = self._mem0.search(query, vectors, fetched, filters)[:top_k]
                if len(found) == top_k or fetched >= len(self.index_to_id):
                    return found
                fetched *= 4

    def list(self, filters: Any = None, top_k: int = 100) -> Any:
        with self._lock:
            self._refresh()
            return self._mem0.list(filters, top_k) if self.index is not None else [[]]

    def get(self, vector_id: str) -> Any:
        with self._lock:
            self._refresh()
            return self._mem0.get(vector_id) if self.index is not None else None

    # Called by us ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a request: discard changes that an earlier one in this thread has left."""
        self._thread.changes = []

    def contains(self, **about: Any) -> bool:
        return bool(self.list(about, 1)[0])

    def commit(self, **once: Any) -> None:
        """Write the changes of the request. Nothing is inserted if there is a vector with the payload `once`."""
        changes, self._thread.changes = self._changes, []
        if not changes:
            return
        with self._lock, self._locked():
            self._refresh()
            exists = bool(once) and self.contains(**once)
            try:
                for what, arguments in changes:
                    if what != "insert" or not exists:
                        self._apply(what, arguments)
                self._write()
            except BaseException:
                # Memory and files differ now: read the files again.
                self._stamp = None
                self._clear()
                raise

    def remove(self, ids: set[str]) -> None:
        """Remove vectors with one write; Mem0's `delete` writes everything for each of them."""
        with self._lock, self._locked():
            self._refresh()
            if ids & self.docstore.keys():
                self._drop(ids)
                self._write()

    def unlink(self, ids: set[str]) -> None:
        """Remove links to these memories from a store of entities, and entities without any link left."""
        with self._lock, self._locked():
            self._refresh()
            for payload in self.docstore.values():
                payload["linked_memory_ids"] = [one for one in payload.get("linked_memory_ids", ()) if one not in ids]
            orphans = {one for one, payload in self.docstore.items() if not payload["linked_memory_ids"]}
            if self.index is not None:
                self._drop(orphans)
                self._write()

    # ----------------------------------------------------------------------------------------------------------

    @property
    def _changes(self) -> Changes:
        if not hasattr(self._thread, "changes"):
            self.begin()
        return self._thread.changes

    def _apply(self, what: str, arguments: Any) -> None:
        if what == "insert":
            vectors = arguments[0]
            if self.index is None:
                self.index = self.faiss.IndexFlatIP(len(vectors[0]))
            self._check_dimension(len(vectors[0]))
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
        kept = [position for position, one in sorted(self.index_to_id.items()) if one not in ids]
        vectors = self.index.reconstruct_n(0, self.index.ntotal)[kept] if kept else None
        self.index_to_id = {new: self.index_to_id[old] for new, old in enumerate(kept)}
        self.docstore = {one: payload for one, payload in self.docstore.items() if one not in ids}
        self.index.reset()
        if kept:
            self.index.add(vectors)

    def _check_dimension(self, size: int) -> None:
        if self.index.d != size:
            raise StoreUnreadable(
                f"the stored vectors have {self.index.d} dimensions, and those of the embedder {size}; "
                "configure the previous embedder, or move the folder away and copy the memory again"
            )

    # Files ----------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.index, self.docstore, self.index_to_id = None, {}, {}

    def create_col(self, name: str, distance: str = "") -> Any:
        return self

    def _load(self, index_path: str, docstore_path: str) -> None:
        """Do nothing: files are read on first use."""

    def _save(self) -> None:
        """Do nothing: `commit` writes the files."""

    @property
    def _payload_path(self) -> str:
        return f"{self.path}/{self.collection_name}.json"

    @property
    def _index_path(self) -> str:
        return f"{self.path}/{self.collection_name}.faiss"

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold a lock against other processes: another Everthread with the same home has its own child process."""
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
        """Read the files if another process has changed them."""
        if self._stamp is not None and self._stamp == _stamp(self._payload_path):
            return
        if self._stamp is None and not os.path.isdir(self.path):
            return
        with self._locked():
            self._recover()
            self._stamp = _stamp(self._payload_path)
            if self._stamp is None:
                self._clear()
            else:
                self._read()

    def _recover(self) -> None:
        """Finish or discard a write that was interrupted.

        The payload file is replaced first, and then the write counts. So if only a new index file is left, it belongs
        to the payload file that is in place.
        """
        new_words, new_vectors = f"{self._payload_path}.new", f"{self._index_path}.new"
        if os.path.exists(new_vectors) and not os.path.exists(new_words):
            os.replace(new_vectors, self._index_path)
        for stale in (new_vectors, new_words):
            if os.path.exists(stale):
                os.remove(stale)

    def _read(self) -> None:
        try:
            with open(self._payload_path, encoding="utf-8") as file:
                data = json.load(file)
            self.index = self.faiss.read_index(self._index_path)
            self.docstore = data["docstore"]
            self.index_to_id = {int(position): one for position, one in data["index_to_id"].items()}
        except Exception as error:
            self._stamp = None
            self._clear()
            raise StoreUnreadable(
                f"{self.path} can't be read ({type(error).__name__}); restore it from a backup"
            ) from error
        if not self.index.ntotal == len(self.index_to_id) == len(self.docstore):
            self._stamp = None
            self._clear()
            raise StoreUnreadable(f"the files in {self.path} do not belong together; restore them from a backup")

    def _write(self) -> None:
        if self.index is None:
            return
        data = {"docstore": self.docstore, "index_to_id": {str(k): v for k, v in self.index_to_id.items()}}
        with open(f"{self._payload_path}.new", "w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        self.faiss.write_index(self.index, f"{self._index_path}.new")
        _fsync(f"{self._index_path}.new")
        os.replace(f"{self._payload_path}.new", self._payload_path)
        os.replace(f"{self._index_path}.new", self._index_path)
        _fsync(self.path)
        self._stamp = _stamp(self._payload_path)


def store_class(base: Any, faiss: Any) -> Any:
    """Make the class from Mem0's `FAISS` and the module `faiss`."""
    return type("DurableVectorStore", (DurableVectorStore, base), {"faiss": faiss})


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _fsync(path: str) -> None:
    position = os.open(path, os.O_RDONLY)
    try:
        os.fsync(position)
    finally:
        os.close(position)
