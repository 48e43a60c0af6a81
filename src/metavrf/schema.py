"""What a file that is read must look like, as plain types; what does not is one sentence that names the place.

A shape is a type, None, a tuple of shapes of which one must hold, a list of one shape for each element, or a dict: its
keys are names (one that ends in "?" may be missing, and others may be there), or the one key ``str`` for any name.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from metavrf.errors import UserError

NUMBER = (int, float)
_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
}
_WORDS |= {list: "a list", None: "nothing"}


def check_shape(value: Any, shape: Any, where: Path | str) -> None:
    """Refuse what is not of that shape."""
    if wrong := _wrong(value, shape, ""):
        raise UserError(f"{where} is damaged, or not of this version of metavrf: {wrong}")


def _wrong(value: Any, shape: Any, place: str) -> str:
    """What is wrong, and where; or nothing."""
    if isinstance(shape, tuple):
        found = [_wrong(value, one, place) for one in shape]
        return "" if "" in found else found[0]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place or 'it'} must be a list"
        return next((wrong for at, item in enumerate(value) if (wrong := _wrong(item, shape[0], f"{place}[{at}]"))), "")
    if isinstance(shape, dict):
        return _wrong_object(value, shape, place)
    if shape is Any:
        return ""
    if shape is None:
        sound = value is None
    elif shape is float:
        sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    else:
        sound = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    return "" if sound else f"{place or 'it'} must be {_WORDS[shape]}"


def _wrong_object(value: Any, shape: dict[Any, Any], place: str) -> str:
    if not isinstance(value, dict):
        return f"{place or 'it'} must be an object"
    prefix = f"{place}." if place else ""
    if str in shape:
        return next((wrong for name in value if (wrong := _wrong(value[name], shape[str], f"{prefix}{name}"))), "")
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key in value:
            if wrong := _wrong(value[key], inner, f"{prefix}{key}"):
                return wrong
        elif key == name:
            return f"{prefix}{key} is missing"
    return ""
