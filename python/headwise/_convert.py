"""Arguments as the C++ library takes them. What it would end the process for, or read otherwise than meant, raises here."""

from __future__ import annotations

import json
import math
import operator
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

from .errors import HeadwiseWarning, InvalidInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = Union[Sequence[int], npt.NDArray[np.integer[Any]]]

MAX_ID = 2**31 - 1


def token_ids(value: Any, name: str = "ids") -> list[int]:
    """A list, tuple or one-dimensional array of whole numbers as a list of ids."""
    if isinstance(value, (str, bytes, dict)):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a list of token ids")
    if hasattr(value, "dtype"):
        given = array(value, name)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InvalidInput(
                f"{name}: found an array of {given.dtype} with {given.ndim} dimensions, expected whole numbers in one"
            )
        ids: list[int] = given.tolist()
    else:
        try:
            items = list(value)
        except TypeError:
            raise InvalidInput(f"{name}: found {type(value).__name__}, expected a list of token ids") from None
        ids = []
        for place, item in enumerate(items):
            try:
                if isinstance(item, bool):
                    raise TypeError
                ids.append(operator.index(item))
            except TypeError:
                raise InvalidInput(f"{name}: item {place} is {shown(item)}, expected a token id") from None
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_ID):
        place = next(i for i, each in enumerate(ids) if not 0 <= each <= MAX_ID)
        raise InvalidInput(f"{name}: item {place} is {shown(ids[place])}, expected a token id")
    return ids


def array(value: Any, name: str) -> npt.NDArray[Any]:
    """numpy's, of what may be another library's: not all have numpy's dtype."""
    import numpy as np

    try:
        given = np.asanyarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = type(value).__name__
        raise InvalidInput(f"{name}: found {found}, expected an array that numpy reads: {error}") from None
    if np.ma.is_masked(given):
        raise InvalidInput(f"{name}: found an array with masked numbers, expected all of them")
    return np.asarray(given)


def shown(value: Any) -> str:
    """For messages: numbers may have more digits than Python writes."""
    try:
        return repr(value)
    except ValueError:
        return f"{type(value).__name__} of too many digits"


def whole(value: Any, name: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """A whole number that the library has room for; what else may be said of it the library checks."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name}: found {shown(value)}, expected a whole number") from None
    if not least <= number <= most:
        raise InvalidInput(f"{name}: found {shown(number)}, expected {least} to {most}")
    return number


def wholes(value: Any, name: str, least: int = -(2**63)) -> list[int]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a list of whole numbers")
    return [whole(each, name, least) for each in value]


def real(value: Any, name: str) -> float:
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name}: found {shown(value)}, expected a number") from None


def finite(value: Any, name: str) -> float:
    number = real(value, name)
    if not math.isfinite(number):
        raise InvalidInput(f"{name}: found {number}, expected a finite number")
    return number


def reals(value: Any, name: str) -> list[float]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a list of numbers")
    return [real(each, name) for each in value]


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name}: is no text that UTF-8 has: {error.reason} at character {error.start}") from None
    return value


def texts(value: Any, name: str) -> list[str]:
    """Of a list; a text alone would be one of letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a list of str")
    return [text(each, name) for each in value]


def function(value: Any, name: str) -> None:
    if value is not None and not callable(value):
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a function")


def path(value: Any, name: str) -> str:
    try:
        return text(os.fspath(value), name)
    except TypeError:
        raise InvalidInput(f"{name}: found {type(value).__name__}, expected a path") from None


def json_text(value: Any, name: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{name}: is no JSON: {error}") from None


def options(given: dict[str, Any]) -> dict[str, str]:
    """Keyword arguments as options of the command line: sink=4 is --sink 4. None is an option that is not given."""
    named: dict[str, str] = {}
    for key, value in given.items():
        if value is not None:
            named[key.rstrip("_").replace("_", "-")] = _option(value, key)
    return named


def _option(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value, name)
    if hasattr(value, "__fspath__"):
        return path(value, name)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable):
        return ",".join(_option(each, name) for each in value)
    try:
        return str(operator.index(value))
    except TypeError:
        return repr(real(value, name))
    except ValueError:
        raise InvalidInput(f"{name}: found {shown(value)}, expected a number that can be written") from None


def warn(messages: Iterable[str]) -> None:
    """At the line that called the package, however many of its functions are in between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    for message in messages:
        warnings.warn(message, HeadwiseWarning, stacklevel=level)
