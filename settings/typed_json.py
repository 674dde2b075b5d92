"""Dataclasses as JSON and back: the fields are the keys, and a wrong file gives one line that names the place."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from settings.errors import UserError

DIGITS = 6  # significant digits of a number in a file
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_hints = cache(get_type_hints)


def may_be_absent() -> Any:
    """Return a dataclass field that a file leaves out if it is None."""
    return field(default=None, metadata={"absent": True})


def flattened() -> Any:
    """Return a dataclass field, a dict, whose entries a file has next to the other fields. It is the last one."""
    return field(default_factory=dict, metadata={"flattened": True})


def to_json(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: numbers with six significant digits, nan and infinity as None."""
    if is_dataclass(value):
        written: dict[str, Any] = {}
        for entry in fields(value):
            item = getattr(value, entry.name)
            if entry.metadata.get("flattened"):
                written |= to_json(item)
            elif item is not None or not entry.metadata.get("absent"):
                written[entry.name] = to_json(item)
        return written
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(to_json, value))
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def json_text(value: Any) -> str:
    """Return `value` as the text of a file."""
    return json.dumps(to_json(value), indent=2) + "\n"


def from_json(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as the type `kind`: a dataclass, a number, a text, or lists and dicts of them.

    None as a float is nan. `where` is the place in the file, for messages. Raises UserError with one line for a value
    with another type, a missing field, and a field that the dataclass does not have.
    """
    origin = get_origin(kind)
    of_items = get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):  # X | None
        return None if value is None else from_json(of_items[0], value, where)
    if origin in (list, tuple) or hasattr(kind, "_fields"):
        return _sequence_from_json(kind, value, where)
    if origin is dict:
        _check(value, dict, where, "an object")
        return {key: from_json(of_items[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(kind):
        return _object_from_json(kind, value, where)
    if kind is float and value is None:
        return math.nan
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{where}: {value!r} is not {_WORDS[kind]}")
    return value


def _sequence_from_json(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON list as list[X], tuple[X, ...], or as a tuple or NamedTuple of one type per place."""
    _check(value, list, where, "a list")
    origin = get_origin(kind)
    kinds = get_args(kind)
    if origin is None:  # a NamedTuple
        kinds = tuple(_hints(kind).values())
    elif origin is list or kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise UserError(f"{where}: {len(value)} values instead of {len(kinds)}")
    items = [from_json(kinds[i], item, f"{where}[{i}]") for i, item in enumerate(value)]
    return kind(*items) if origin is None else origin(items)


def _object_from_json(kind: Any, value: Any, where: str) -> Any:
    _check(value, dict, where, "an object")
    hints = _hints(kind)
    remaining = dict(value)
    arguments: dict[str, Any] = {}
    for entry in fields(kind):
        # The flattened field is the last one and takes what remains.
        if entry.metadata.get("flattened"):
            arguments[entry.name] = remaining
            remaining = {}
        elif entry.name in remaining:
            item = remaining.pop(entry.name)
            arguments[entry.name] = from_json(hints[entry.name], item, f"{where}.{entry.name}")
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise UserError(f"{where}: no field {entry.name}")
    if remaining:
        raise UserError(f"{where}: unknown field {next(iter(remaining))}")
    return kind(**arguments)


def _check(value: Any, kind: type, where: str, words: str) -> None:
    if not isinstance(value, kind):
        raise UserError(f"{where}: not {words}")
