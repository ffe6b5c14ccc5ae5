"""The process in which the local model runs: xllamacpp's own server, on loopback, for its parent only.

Run as a file, with the folder of xllamacpp, the file of the weights, the model's name and its context in tokens. It
needs nothing of Everthread's. On stdout it says one line of JSON: the `url` and the `key` of the endpoint once it
listens, or an `error`. It ends with its stdin, so that it can't outlive its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import secrets
import signal
import sys
import threading
from typing import Any

THREADS = 1
"""The other cores are for other things; a second one makes this model little faster."""
HTTP_THREADS = 2

# Tried with facts to answer from and with stories to tell: any other temperature or a stronger penalty of words costs
# facts, and without the penalty of repeated phrases (DRY) every third long answer goes in circles.
TEMPERATURE = 0.0
WORD_PENALTY, WORD_TOKENS = 1.1, 64
PHRASE_PENALTY, PHRASE_LENGTH_MIN, PHRASE_TOKENS = 0.8, 4, 256

_PR_SET_PDEATHSIG = 1


def main() -> None:
    folder, weights, name, context_tokens = sys.argv[1:]
    _die_with_the_parent()
    say = _stdout_for_us_alone()
    key = secrets.token_urlsafe(32)
    try:
        sys.path.insert(0, folder)
        server = _serve(weights, name, int(context_tokens), key)
    except Exception as error:  # noqa: BLE001 - told to the parent, in words
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
        os._exit(1)
    say({"url": server.listening_address, "key": key})
    threading.Event().wait()


def _die_with_the_parent() -> None:
    def end_with_stdin() -> None:
        while os.read(0, 1024):
            pass
        # Not an ordinary exit: the model's threads need not agree.
        os._exit(0)

    threading.Thread(target=end_with_stdin, daemon=True).start()
    if sys.platform == "linux":
        # For a process that is too busy to see the end of its stdin, or whose pipe somebody else has inherited.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stdout_for_us_alone() -> Any:
    """A way to say a line; whatever the libraries print goes nowhere."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def say(line: dict[str, str]) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")
        os.close(out)

    return say


def _serve(weights: str, name: str, context_tokens: int, key: str) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.model_alias = {name}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    params.sampling.temp = TEMPERATURE
    params.sampling.penalty_repeat = WORD_PENALTY
    params.sampling.penalty_last_n = WORD_TOKENS
    params.sampling.dry_multiplier = PHRASE_PENALTY
    params.sampling.dry_allowed_length = PHRASE_LENGTH_MIN
    params.sampling.dry_penalty_last_n = PHRASE_TOKENS
    # Any free port; the key keeps other users of the machine out, and web pages too.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_threads_http = HTTP_THREADS
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
