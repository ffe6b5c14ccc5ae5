"""The process in which Mem0's library runs: it takes requests from its parent as lines of JSON, and answers each.

Run as a file, by a Python that has mem0ai and faiss; it needs nothing of Everthread's but the files beside it. The
first line says where memories are kept and which endpoints to use. It answers `{"ready": true}` or an `error`; then
`{"id": 1, "do": "add", ...}` is answered by `{"id": 1, "found": ...}` or `{"id": 1, "error": ..., "kind": ...}`, in
whatever order they are done. It ends with its stdin.

Every person has a folder, and so an index, a history and an instance of Mem0 of their own.
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
PEOPLE_MAX = 32
"""Instances that are kept; others are made again when they are asked for."""
THRESHOLD = 0.05
COLLECTION = "memories"
_PR_SET_PDEATHSIG = 1

Json = dict[str, Any]

sys.path.insert(0, str(Path(__file__).parent))
vector_store: Any = importlib.import_module("vector_store")
errors: Any = importlib.import_module("errors")


def main() -> None:
    _die_with_the_parent()
    os.umask(0o077)
    say = _stdout_for_us_alone()
    told = json.loads(sys.stdin.readline() or "{}")
    try:
        people = People(told)
    except ImportError as error:
        say({"missing": error.name or "mem0"})
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - told to the parent
        say({"error": errors.in_words(error)})
        os._exit(1)
    say({"ready": True})
    threads = ThreadPoolExecutor(THREADS)
    for line in sys.stdin:
        threads.submit(_answer, people, json.loads(line), say)
    # Not an ordinary exit: that would wait for every request that hangs. Nothing is ever half written.
    os._exit(0)


def _answer(people: People, request: Json, say: Callable[[Json], None]) -> None:
    number, do = request.pop("id"), request.pop("do")
    try:
        say({"id": number, "found": getattr(people, f"do_{do}")(**request)})
    except BaseException as error:  # noqa: BLE001 - the library raises whatever it likes; the parent is told
        say({"id": number, "error": errors.in_words(error), "kind": errors.kind(error)})


class People:
    def __init__(self, told: Json) -> None:
        self._folder = Path(told["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        _leave_out_what_is_not_used(self._folder)
        self._mem0: Any = importlib.import_module("mem0.memory.main")
        stores: Any = importlib.import_module("mem0.vector_stores.faiss")
        factory: Any = importlib.import_module("mem0.utils.factory")
        stores.Shelf = vector_store.made_of(stores.FAISS, importlib.import_module("faiss"))
        factory.VectorStoreFactory.provider_to_class["faiss"] = "mem0.vector_stores.faiss.Shelf"
        self._endpoints = {name: told[name] for name in ("llm", "embedder")}
        self._request_s: float = told["request_s"]
        self._shared: tuple[Any, Any] | None = None
        self._here: OrderedDict[str, Any] = OrderedDict()
        self._making = threading.Lock()
        self._writing = WeakValueDictionary[tuple[str, str], Any]()
        # The first one imports what the endpoints need, which is slow.
        self._instance(str(self._folder / "none"), ":memory:")

    # Requests -------------------------------------------------------------------------------------------------------

    def do_add(self, person: str, run: str, messages: list[Json], metadata: Json, infer: bool) -> None:
        memory = self._of(person)
        once = {"run_id": run, "entry": metadata["entry"]}
        with self._alone(person, run):
            if memory.vector_store.holds(**once):
                return
            _begin(memory)
            memory.add(messages, user_id=person, run_id=run, metadata=metadata, infer=infer)
            errors.refuse_what_was_missed()
            # Once more under the lock of the files: somebody else may have been faster.
            memory.vector_store.commit(**once)
            if memory._entity_store is not None:  # noqa: SLF001
                memory.entity_store.commit()

    def do_search(self, person: str, query: str, limit: int) -> list[Json]:
        if not self._is_known(person):
            return []
        memory = self._of(person)
        found = memory.search(query, filters={"user_id": person}, top_k=limit, threshold=THRESHOLD)["results"]
        return [_shown(one) for one in found]

    def do_listed(self, person: str, limit: int, about: Json) -> list[Json]:
        if not self._is_known(person):
            return []
        filters = {"user_id": person, **about}
        found = self._of(person).get_all(filters=filters, top_k=limit, show_expired=True)["results"]
        return [_shown(one) for one in found]

    def do_remove(self, person: str, ids: list[str]) -> None:
        if self._is_known(person):
            there = set(ids)
            self._forget(person, lambda one, payload: one in there)

    def do_forget_run(self, person: str, run: str) -> None:
        if self._is_known(person):
            # Somebody may have given up on a request that is still under way: it must not bring anything back.
            with self._alone(person, run):
                self._forget(person, lambda one, payload: payload.get("run_id") == run)
            self._clean(person, "DELETE FROM messages WHERE session_scope = ?", f"run_id={run}&user_id={person}")

    def do_forget_words(self, person: str, words: str, instead: str) -> None:
        if not self._is_known(person):
            return
        with self._all_alone(person):
            memory = self._of(person)
            having = [one for one in memory.vector_store.list({}, sys.maxsize)[0] if words in one.payload["data"]]
            _begin(memory)
            for one in having:
                left = one.payload["data"].replace(words, instead)
                if left.strip() != instead:
                    memory.update(one.id, text=left)
            errors.refuse_what_was_missed()
            memory.vector_store.commit()
            self._forget(person, lambda one, payload: words in payload["data"])
            for one in having:
                self._clean(person, "DELETE FROM history WHERE memory_id = ?", one.id)
            self._clean(person, "DELETE FROM messages WHERE instr(content, ?)", words)

    def do_forget_person(self, person: str) -> None:
        with self._all_alone(person), self._making:
            self._here.pop(person, None)
            if (self._folder / person).exists():
                shutil.rmtree(self._folder / person)

    def do_check(self) -> None:
        assert self._shared is not None
        self._shared[1].embed("hello", "search")

    # ----------------------------------------------------------------------------------------------------------------

    def _alone(self, person: str, run: str) -> Any:
        """One request that writes to a run at a time."""
        with self._making:
            return self._writing.setdefault((person, run), threading.Lock())

    @contextlib.contextmanager
    def _all_alone(self, person: str) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            with self._making:
                locks = [lock for (whose, _), lock in self._writing.items() if whose == person]
            for lock in locks:
                stack.enter_context(lock)
            yield

    def _forget(self, person: str, goes: Callable[[str, Json], bool]) -> None:
        """The memories, their history, and the entities that were found in them alone."""
        memory = self._of(person)
        ids = {one.id for one in memory.vector_store.list({}, sys.maxsize)[0] if goes(one.id, one.payload)}
        if not ids:
            return
        memory.vector_store.remove(ids)
        for one in ids:
            self._clean(person, "DELETE FROM history WHERE memory_id = ?", one)
        if (self._folder / person / f"{COLLECTION}_entities.json").exists():
            memory.entity_store.unlink(ids)

    def _clean(self, person: str, statement: str, *values: str) -> None:
        database = self._of(person).db
        with database._lock:  # noqa: SLF001
            # Else the words stay in the file's free pages.
            database.connection.execute("PRAGMA secure_delete = ON")
            database.connection.execute(statement, values)
            database.connection.commit()

    def _is_known(self, person: str) -> bool:
        return (self._folder / person).is_dir()

    def _of(self, person: str) -> Any:
        with self._making:
            if person not in self._here or not self._is_known(person):
                place = self._folder / person
                place.mkdir(exist_ok=True)
                self._here[person] = self._instance(str(place), str(place / "history.db"))
            self._here.move_to_end(person)
            while len(self._here) > PEOPLE_MAX:
                self._here.popitem(last=False)
            return self._here[person]

    def _instance(self, folder: str, history: str) -> Any:
        endpoints = {
            name: {
                "provider": "openai",
                "config": {"model": one["model"], "openai_base_url": one["url"], "api_key": one["key"] or "none"},
            }
            for name, one in self._endpoints.items()
        }
        files = {"path": folder, "collection_name": COLLECTION, "distance_strategy": "cosine"}
        memory = self._mem0.Memory.from_config(
            {**endpoints, "vector_store": {"provider": "faiss", "config": files}, "history_db_path": history}
        )
        if self._shared is None:
            self._share(memory)
        return memory

    def _share(self, memory: Any) -> None:
        """One model and one embedder for everybody: each would make its own clients, and that takes longest."""
        llm, embedder = self._shared = memory.llm, memory.embedding_model
        for one in self._shared:
            # Nothing is repeated here, and nothing waits for minutes: the journal has its own patience.
            one.client = one.client.with_options(timeout=self._request_s, max_retries=0)
        # Loaded when they are first named, and the first turn should not wait for it.
        _ = llm.client.chat.completions, embedder.client.embeddings
        utils: Any = importlib.import_module("mem0.memory.utils")
        errors.watch(llm, embedder, utils.remove_code_blocks)
        self._mem0.LlmFactory, self._mem0.EmbedderFactory = _Same(llm), _Same(embedder)


class _Same:
    """A factory that has made its one thing already."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def create(self, *_: Any) -> Any:
        return self._made


def _begin(memory: Any) -> None:
    errors.begin()
    memory.vector_store.begin()
    if memory._entity_store is not None:  # noqa: SLF001
        memory.entity_store.begin()


def _shown(one: Json) -> Json:
    return {"id": one["id"], "memory": one["memory"], "score": one.get("score"), "metadata": one.get("metadata")}


# The process --------------------------------------------------------------------------------------------------------


def _leave_out_what_is_not_used(folder: Path) -> None:
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder)}  # noqa: TID251 - this is a process of its own
    # Two thirds of the time that Mem0 takes to start is spent on a database that is not used here, and on a library
    # whose one purpose is to tell others of it.
    for module, name in (("qdrant_client", "QdrantClient"), ("posthog", "Posthog")):
        stub: Any = types.ModuleType(module)
        setattr(stub, name, type(name, (), {}))
        sys.modules[module] = stub


def _die_with_the_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stdout_for_us_alone() -> Callable[[Json], None]:
    """A way to say a line; whatever the libraries print goes nowhere."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    talking = threading.Lock()
    pipe = os.fdopen(out, "w", encoding="utf-8")

    def say(line: Json) -> None:
        # The parent may be gone.
        with talking, contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps(line) + "\n")
            pipe.flush()

    return say


if __name__ == "__main__":
    main()
