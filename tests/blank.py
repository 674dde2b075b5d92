"""Made-up dataclasses: a test names the fields that it is about, the others are empty."""

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def blank(kind: Any, **values: Any) -> Any:
    """Return a dataclass with these values, and an empty value in every other field without a default."""
    hints = get_type_hints(kind)
    for part in fields(kind):
        has_default = part.default is not MISSING or part.default_factory is not MISSING
        if part.name not in values and not has_default:
            values[part.name] = _empty(hints[part.name])
    return kind(**values)


def _empty(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType) and NoneType in get_args(kind):
        return None
    if origin is tuple:
        return tuple(_empty(part) for part in get_args(kind) if part is not Ellipsis)
    if is_dataclass(kind):
        return blank(kind)
    return (origin or kind)()  # 0, 0.0, "", [] or {}
