"""Run Mem0's library: read requests as lines of JSON from stdin, and write responses to stdout.

Run as a script by a Python that has mem0ai and faiss; it needs only the files beside it. The first line has the folder
and the endpoints. The response is `{"ready": true}`, a `missing` package or an `error`. Then
`{"id": 1, "do": "add", ...}` is answered by `{"id": 1, "found": ...}` or `{"id": 1, "error": ..., "kind": ...}`, in
the order of completion. The process ends with its stdin.

Each user has a folder with an index and a history, and an instance of Mem0.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

THREADS = 12
USERS_MAX = 32
"""Instances in memory; others are made again on demand."""
THRESHOLD = 0.05
COLLECTION = "memories"
_PR_SET_PDEATHSIG = 1

Json = dict[str, Any]

sys.path.insert(0, str(Path(__file__).parent))
vector_store: Any = importlib.import_module("vector_store")
errors: Any = importlib.import_module("errors")


def main() -> None:
    _die_with_parent()
    os.umask(0o077)
    write_line = _claim_stdout()
    settings = json.loads(sys.stdin.readline() or "{}")
    try:
        people = Mem0Users(settings)
    except ImportError as error:
        write_line({"missing": error.name or "mem0"})
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        write_line({"error": errors.message(error)})
        os._exit(1)
    write_line({"ready": True})
    threads = ThreadPoolExecutor(THREADS)
    for line in sys.stdin:
        threads.submit(_respond, people, json.loads(line), write_line)
    # Not sys.exit, which would wait for requests that hang. Writes are atomic, so none is left half done.
    os._exit(0)


def _respond(people: Mem0Users, request: Json, write_line: Callable[[Json], None]) -> None:
    number, do = request.pop("id"), request.pop("do")
    try:
        write_line({"id": number, "found": getattr(people, f"do_{do}")(**request)})
    except BaseException as error:  # noqa: BLE001 - the library raises anything; reported to the parent
        write_line({"id": number, "error": errors.message(error), "kind": errors.kind(error)})


class Mem0Users:
    def __init__(self, settings: Json) -> None:
        self._folder = Path(settings["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        _disable_unused(self._folder)
        self._mem0: Any = importlib.import_module("mem0.memory.main")
        stores: Any = importlib.import_module("mem0.vector_stores.faiss")
        factory: Any = importlib.import_module("mem0.utils.factory")
        stores.DurableVectorStore = vector_store.store_class(stores.FAISS, importlib.import_module("faiss"))
        factory.VectorStoreFactory.provider_to_class["faiss"] = "mem0.vector_stores.faiss.DurableVectorStore"
        self._endpoints = {name: settings[name] for name in ("llm", "embedder")}
        self._request_s: float = settings["request_s"]
        self._shared: tuple[Any, Any] | None = None
        self._instances: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._run_locks = WeakValueDictionary[tuple[str, str], Any]()
        # The first instance imports the clients of the endpoints, which is slow.
        self._instance(str(self._folder / "none"), ":memory:")

    # Requests -------------------------------------------------------------------------------------------------------

    def do_add(self, person: str, run: str, messages: list[Json], metadata: Json, infer: bool) -> None:
        memory = self._memory(person)
        once = {"run_id": run, "entry": metadata["entry"]}
        with self._run_lock(person, run):
            if memory.vector_store.contains(**once):
                return
            _begin(memory)
            memory.add(messages, user_id=person, run_id=run, metadata=metadata, infer=infer)
            errors.raise_swallowed()
            # Checked again under the file lock: another process may have added it meanwhile.
            memory.vector_store.commit(**once)
            if memory._entity_store is not None:  # noqa: SLF001
                memory.entity_store.commit()

    def do_search(self, person: str, query: str, limit: int) -> list[Json]:
        if not self._is_known(person):
            return []
        memory = self._memory(person)
        found = memory.search(query, filters={"user_id": person}, top_k=limit, threshold=THRESHOLD)["results"]
        return [_memory_json(each) for each in found]

    def do_listed(self, person: str, limit: int, about: Json) -> list[Json]:
        if not self._is_known(person):
            return []
        filters = {"user_id": person, **about}
        found = self._memory(person).get_all(filters=filters, top_k=limit, show_expired=True)["results"]
        return [_memory_json(each) for each in found]

    def do_remove(self, person: str, ids: list[str]) -> None:
        if self._is_known(person):
            doomed = set(ids)
            self._forget(person, lambda each, payload: each in doomed)

    def do_forget_run(self, person: str, run: str) -> None:
        if self._is_known(person):
            # Wait for requests that are still running, even if their caller gave up: they must not add anything later.
            with self._run_lock(person, run):
                self._forget(person, lambda each, payload: payload.get("run_id") == run)
            self._execute(person, "DELETE FROM messages WHERE session_scope = ?", f"run_id={run}&user_id={person}")

    def do_forget_words(self, person: str, words: str, instead: str) -> None:
        if not self._is_known(person):
            return
        with self._all_run_locks(person):
            memory = self._memory(person)
            containing = [
                each for each in memory.vector_store.list({}, sys.maxsize)[0] if words in each.payload["data"]
            ]
            _begin(memory)
            for each in containing:
                remaining = each.payload["data"].replace(words, instead)
                if remaining.strip() != instead:
                    memory.update(each.id, text=remaining)
            errors.raise_swallowed()
            memory.vector_store.commit()
            self._forget(person, lambda each, payload: words in payload["data"])
            for each in containing:
                self._execute(person, "DELETE FROM history WHERE memory_id = ?", each.id)
            self._execute(person, "DELETE FROM messages WHERE instr(content, ?)", words)

    def do_forget_person(self, person: str) -> None:
        with self._all_run_locks(person), self._lock:
            self._instances.pop(person, None)
            if (self._folder / person).exists():
                shutil.rmtree(self._folder / person)

    def do_check(self) -> None:
        assert self._shared is not None
        self._shared[1].embed("hello", "search")

    # ----------------------------------------------------------------------------------------------------------------

    def _run_lock(self, person: str, run: str) -> Any:
        """Return the lock that serializes writes to a run."""
        with self._lock:
            return self._run_locks.setdefault((person, run), threading.Lock())

    @contextlib.contextmanager
    def _all_run_locks(self, person: str) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            with self._lock:
                locks = [lock for (whose, _), lock in self._run_locks.items() if whose == person]
            for lock in locks:
                stack.enter_context(lock)
            yield

    def _forget(self, person: str, is_doomed: Callable[[str, Json], bool]) -> None:
        """Remove memories, their history, and entities that occur in no other memory."""
        memory = self._memory(person)
        ids = {each.id for each in memory.vector_store.list({}, sys.maxsize)[0] if is_doomed(each.id, each.payload)}
        if not ids:
            return
        memory.vector_store.remove(ids)
        for each in ids:
            self._execute(person, "DELETE FROM history WHERE memory_id = ?", each)
        if (self._folder / person / f"{COLLECTION}_entities.json").exists():
            memory.entity_store.unlink(ids)

    def _execute(self, person: str, statement: str, *values: str) -> None:
        database = self._memory(person).db
        with database._lock:  # noqa: SLF001
            # Otherwise the text stays in the file's free pages.
            database.connection.execute("PRAGMA secure_delete = ON")
            database.connection.execute(statement, values)
            database.connection.commit()

    def _is_known(self, person: str) -> bool:
        return (self._folder / person).is_dir()

    def _memory(self, person: str) -> Any:
        with self._lock:
            if person not in self._instances or not self._is_known(person):
                folder = self._folder / person
                folder.mkdir(exist_ok=True)
                self._instances[person] = self._instance(str(folder), str(folder / "history.db"))
            self._instances.move_to_end(person)
            while len(self._instances) > USERS_MAX:
                self._instances.popitem(last=False)
            return self._instances[person]

    def _instance(self, folder: str, history: str) -> Any:
        endpoints = {
            name: {
                "provider": "openai",
                "config": {
                    "model": each["model"],
                    "openai_base_url": each["url"],
                    "api_key": each["key"] or "none",
                },
            }
            for name, each in self._endpoints.items()
        }
        files = {"path": folder, "collection_name": COLLECTION, "distance_strategy": "cosine"}
        memory = self._mem0.Memory.from_config(
            {**endpoints, "vector_store": {"provider": "faiss", "config": files}, "history_db_path": history}
        )
        if self._shared is None:
            self._share(memory)
        return memory

    def _share(self, memory: Any) -> None:
        """Share one model and one embedder between all instances: making their clients is slow."""
        llm, embedder = self._shared = memory.llm, memory.embedding_model
        for each in self._shared:
            # No retries here: the journal retries.
            each.client = each.client.with_options(timeout=self._request_s, max_retries=0)
        # Loaded lazily on first access; do it now, so that the first turn need not wait.
        _ = llm.client.chat.completions, embedder.client.embeddings
        utils: Any = importlib.import_module("mem0.memory.utils")
        errors.watch(llm, embedder, utils.remove_code_blocks)
        self._mem0.LlmFactory, self._mem0.EmbedderFactory = _FixedFactory(llm), _FixedFactory(embedder)


class _FixedFactory:
    """A factory that always returns the same object."""

    def __init__(self, product: Any) -> None:
        self._product = product

    def create(self, *_: Any) -> Any:
        return self._product


def _begin(memory: Any) -> None:
    errors.begin()
    memory.vector_store.begin()
    if memory._entity_store is not None:  # noqa: SLF001
        memory.entity_store.begin()


def _memory_json(each: Json) -> Json:
    return {
        "id": each["id"],
        "memory": each["memory"],
        "score": each.get("score"),
        "metadata": each.get("metadata"),
    }


# The process --------------------------------------------------------------------------------------------------------


def _disable_unused(folder: Path) -> None:
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder)}  # noqa: TID251 - a separate process
    # Two thirds of Mem0's start-up time are spent on a database client that is not used here, and on telemetry.
    for module, name in (("qdrant_client", "QdrantClient"), ("posthog", "Posthog")):
        stub: Any = types.ModuleType(module)
        setattr(stub, name, type(name, (), {}))
        sys.modules[module] = stub


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _claim_stdout() -> Callable[[Json], None]:
    """Redirect the output of libraries to /dev/null, and return a function that writes a line to the real stdout."""
    out, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    lock = threading.Lock()
    pipe = os.fdopen(out, "w", encoding="utf-8")

    def write_line(line: Json) -> None:
        # The parent may have exited.
        with lock, contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps(line) + "\n")
            pipe.flush()

    return write_line


if __name__ == "__main__":
    main()
