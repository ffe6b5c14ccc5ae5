"""Changing `config.toml` and `.env`. What is written was checked before, as it will be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.config import Places, dotenv, files, reading
from everthread.config.editing import changed, keys_of, values_meant
from everthread.config.lines import line_in_toml
from everthread.config.reading import Mistake, Source, Table, dotted
from everthread.config.schema import built_in_providers
from everthread.config.secrets import refuse_secrets
from everthread.config.writing import replace_file
from everthread.domain.errors import BadConfig, BadInput


def set_value(places: Places, key: str, written: str) -> Any:
    """Set one setting to what the text means, in `config.toml`; the value that it has now. Raises `BadInput`."""
    keys = keys_of(key)
    _refuse_secret(places, keys, written)
    first: BadConfig | None = None
    for value in values_meant(written):
        try:
            _set(places, {keys: value})
            return value
        except BadConfig as error:
            first = first or error
    assert first is not None
    if isinstance(first, Mistake) and first.keys[: len(keys)] == keys[: len(first.keys)]:
        raise BadInput(first.what) from first
    raise first


def set_values(places: Places, values: Mapping[str, Any]) -> None:
    """Set several settings at once, or none of them."""
    _set(places, {keys_of(key): value for key, value in values.items()})


def replace_config(places: Places, text: str) -> None:
    """Put a whole new text into the place of `config.toml`. Raises `BadConfig` for the first thing wrong with it."""
    files.read(places.home, places.config, places.env, places.mcp, draft=text)
    replace_file(places.config, text)


def set_secret(places: Places, name: str, value: str) -> None:
    """Set a variable in `.env`."""
    text = reading.text_of(places.env) or ""
    changed_text = dotenv.with_variable(text, name, value)
    dotenv.parse(places.env, changed_text)
    replace_file(places.env, changed_text)


def _refuse_secret(places: Places, keys: tuple[str, ...], written: str) -> None:
    """Before anything else: no other complaint may quote it."""
    values: Any = written
    for key in reversed(keys):
        values = {key: values}
    try:
        refuse_secrets(Table(Source(places.config, "", line_in_toml), (), values), places.env, built_in_providers())
    except Mistake as error:
        raise BadInput(error.what.removesuffix(" and remove it here")) from error


def _set(places: Places, values: Mapping[tuple[str, ...], Any]) -> None:
    text = reading.text_of(places.config) or ""
    reading.toml(places.config, text)
    for keys, value in values.items():
        result = changed(text, keys, value)
        if result is None:
            raise BadInput(f"{dotted(keys)} can't be set in {places.config} as it is written; use config edit")
        text = result
    replace_config(places, text)
