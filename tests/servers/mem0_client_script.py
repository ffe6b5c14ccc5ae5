"""Run with a Python that has mem0ai and the address of a fake platform. Print the results of its client as JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def found(client: Any, user: str) -> list[str]:
    filters = {"AND": [{"user_id": user}, {"run_id": "*"}]}
    return [one["memory"] for one in client.get_all(filters=filters, page=1, page_size=100)["results"]]


def refused(act: Any) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - its name is what is asked for
        return type(error).__name__
    return ""


def main() -> None:
    client: Any = importlib.import_module("mem0").MemoryClient(api_key="k-1234", host=sys.argv[1])
    said: dict[str, Any] = {"ours": client.search("bees", filters={"AND": [{"user_id": sys.argv[2]}, {"run_id": "*"}]})}
    messages = [{"role": "user", "content": "I keep ants"}]
    said["accepted"] = client.add(messages, user_id="bob", run_id="r1", infer=False)
    said["at_once"] = found(client, "bob")
    client.add(messages, user_id="bob", run_id="r1", infer=False)
    for _ in range(2):
        client.add(messages, user_id="eve", run_id="r1", infer=True)
    time.sleep(0.5)
    said["word_for_word"], said["drawn"] = found(client, "bob"), found(client, "eve")
    said["without_run"] = client.get_all(filters={"user_id": "bob"})["results"]
    said["no_filter"] = refused(lambda: client.get_all(filters={}))
    said["no_field"] = refused(lambda: client.get_all(filters={"AND": [{"user_id": "bob"}, {"colour": "red"}]}))
    said["delete_nothing"] = refused(lambda: client.delete_all())
    said["delete_unknown"] = refused(lambda: client.delete("none"))
    [fact] = client.search("ants", filters={"AND": [{"user_id": "eve"}, {"run_id": "r1"}]})["results"]
    client.update(fact["id"], text="I keep wasps")
    said["updated"] = found(client, "eve")
    client.delete_all(user_id="bob", run_id="r1")
    said["deleted_at_once"] = found(client, "bob")
    time.sleep(0.5)
    said["deleted"] = found(client, "bob")
    print(json.dumps(said))  # noqa: T201


main()
