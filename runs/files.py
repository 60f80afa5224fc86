"""Atomic writes, and strict JSON."""

import contextlib
import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from launch.whole_files import replacing

_TEMPORARY = f".*.{'[0-9a-f]' * 12}.tmp"  # the files of ``replacing``
MOST_LEVELS = 100  # of lists and objects within each other in a file of JSON
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class SaveError(RuntimeError):
    """A file of a run could not be saved; everything that was saved before is complete."""


class GoneError(SaveError):
    """The folder of a run was moved or removed."""


@contextlib.contextmanager
def saving(what: object) -> Iterator[None]:
    """Turns an OSError, for example of a full disk, into a SaveError of one line that names the file."""
    try:
        yield
    except OSError as error:
        raise SaveError(f"{str(what)!r} could not be saved: {error.strerror or error}") from error


def save(path: Path, content: bytes) -> None:
    """Writes a file of a run atomically.

    Raises:
      SaveError: in one line, for example if the disk is full.
    """
    with saving(path):
        write_atomically(path, content)


def reason(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old content or the new one, even after a kill."""
    with replacing(path) as file:
        file.write(content)


def remove_temporary(folder: Path) -> None:
    """Removes temporary files of killed writers from a folder; no writer may be active."""
    for temporary in folder.glob(_TEMPORARY):
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to an .npz file of a run, atomically.

    Raises:
      SaveError: in one line, for example if the disk is full.
    """
    content = io.BytesIO()
    np.savez_compressed(content, **dict[str, Any](arrays))
    save(path, content.getvalue())


def to_json(value: Any) -> bytes:
    """Returns sorted and indented JSON; raises ValueError for NaN and infinity, which JSON lacks."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def from_json(content: bytes | str) -> Any:
    """Reads strict JSON, without NaN, infinity, and numbers too large for a float.

    Raises:
      ValueError: in one line, for anything else, including text that is not UTF-8.

    >>> from_json('{"step": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is not JSON
    """
    text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > MOST_LEVELS:
        _check_levels(value)
    return value


def _check_levels(value: Any) -> None:
    """Refuses a value that is nested too deeply for recursive functions; Python 3.13 decodes it."""
    level = [value]
    for _ in range(MOST_LEVELS):
        containers = [list(x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)]
        level = list(itertools.chain.from_iterable(containers))
    if level:
        raise ValueError("nested too deeply")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} exceeds the range of a float")
    return value


# `json.loads` would make a decoder for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_float)


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with "sha256", a hash of all of it.

    >>> is_sealed(sealed({"step": 3})), is_sealed({**sealed({"step": 3}), "step": 2})
    (True, False)
    """
    return {**body, "sha256": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def is_sealed(value: Any) -> bool:
    """Returns whether a value is a JSON object with the right hash."""
    if not isinstance(value, Mapping) or "sha256" not in value:
        return False
    return sealed({key: part for key, part in value.items() if key != "sha256"}) == value


def encode_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces NaN and infinities, which JSON lacks, by the strings "nan", "inf" and "-inf".

    >>> encode_numbers({"loss": float("nan"), "step": 3, "curve": [float("inf")]})
    {'loss': 'nan', 'step': 3, 'curve': ['inf']}
    """
    return _map(lambda v: str(float(v)) if isinstance(v, float) and not math.isfinite(v) else v, tree)


def decode_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes ``encode_numbers``."""
    return _map(lambda v: _NON_FINITE.get(v, v) if isinstance(v, str) else v, tree)


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function to the values in nested mappings and lists."""
    if isinstance(tree, Mapping):
        return {key: _map(change, part) for key, part in tree.items()}
    return [_map(change, part) for part in tree] if isinstance(tree, (list, tuple)) else change(tree)
