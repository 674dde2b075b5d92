"""Results for tests: every field of a dataclass has a plain value unless a test gives another."""

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

PLAIN: dict[Any, Any] = {int: 1, float: 0.5, str: "text", bool: True, Any: 1}


def sample_of(kind: Any, **changes: Any) -> Any:
    """Return an instance of a dataclass; optional values are None, lists and dicts are empty."""
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):
        values[field.name] = changes.pop(field.name) if field.name in changes else _plain(hints[field.name])
    assert not changes, f"{kind.__name__} has no {list(changes)}"
    return kind(**values)


def _plain(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType) and NoneType in arguments:
        return None
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_plain(argument) for argument in arguments)
    if origin in (list, dict, tuple):
        return origin()
    return sample_of(kind) if is_dataclass(kind) else PLAIN[kind]
