"""Files that are either as they were or as they should be, whenever the process is killed."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut (a kill alone loses neither)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a whole file: a reader, now or after a kill, sees the old content or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def to_json(value: Any) -> bytes:
    """Strict JSON for people: sorted, indented, and no NaN, which JSON does not have."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def encode_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the numbers that JSON cannot hold by the strings "nan", "inf" and "-inf"; null would not say which.

    >>> encode_numbers({"loss": float("nan"), "step": 3, "curve": [float("inf")]})
    {'loss': 'nan', 'step': 3, 'curve': ['inf']}
    """
    return _map(lambda v: str(float(v)) if isinstance(v, float) and not math.isfinite(v) else v, tree)


def decode_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes ``encode_numbers``."""
    return _map(lambda v: _NON_FINITE.get(v, v) if isinstance(v, str) else v, tree)


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    """Changes the values in nested mappings and lists."""
    if isinstance(tree, Mapping):
        return {key: _map(change, part) for key, part in tree.items()}
    return [_map(change, part) for part in tree] if isinstance(tree, (list, tuple)) else change(tree)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
