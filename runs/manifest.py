"""What a checkpoint holds: its leaves, its metrics, and the SHA-256 of its every file.

A checkpoint's folder has a manifest.json, written when the files are complete and carrying its own hash, so that any
bit that flips later is noticed; Orbax restores flipped bits without a word.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runs import files

NAME = "manifest.json"
_MAX_SHOWN = 3


def flatten(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree under readable names, whatever classes its nodes have.

    >>> flatten({"params": {"kernel": 1.0}, "count": (2,)})
    {'count/0': 2, 'params/kernel': 1.0}
    """
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    flat = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}
    if len(flat) != len(pairs):
        raise ValueError("a state must not have two leaves of one name, as {'a/b': x, 'a': {'b': y}} has")
    for name, leaf in flat.items():
        if jax.numpy.issubdtype(getattr(leaf, "dtype", np.int32), jax.dtypes.extended):
            raise ValueError(f"state leaf {name!r}: is a typed PRNG key; hold jax.random.key_data of it")
    return flat


def describe(leaf: Any) -> dict[str, Any]:
    """Shape and dtype of an array, of a jax.ShapeDtypeStruct or of a Python number."""
    leaf = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else np.asarray(leaf)
    return {"shape": list(leaf.shape), "dtype": str(np.dtype(leaf.dtype))}


def zeros(leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of the shapes and dtypes that ``describe`` gave."""
    # jax.numpy's dtype names include bfloat16 and the float8s, which numpy alone does not know.
    return {name: np.zeros(leaf["shape"], jax.numpy.dtype(leaf["dtype"])) for name, leaf in leaves.items()}


def write(folder: Path, *, step: int, leaves: Mapping[str, Any], metrics: Mapping[str, float] | None) -> None:
    """Hashes every file below `folder` and writes the manifest; all of it survives a power cut afterwards."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        files.sync(path)
        if path.is_file() and path != folder / NAME:
            size = path.stat().st_size
            hashes[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": files.sha256(path)}
    finite = {key: float(value) for key, value in (metrics or {}).items() if math.isfinite(value)}
    body = {"step": step, "metrics": finite, "leaves": dict(leaves), "files": hashes}
    files.write_atomically(folder / NAME, files.to_json({**body, "sha256": _hash(body)}))


def rewrite_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Gives a checkpoint that was saved without metrics the ones that have become known since."""
    body = read(folder)
    write_again = {**body, "metrics": {key: float(value) for key, value in metrics.items() if math.isfinite(value)}}
    files.write_atomically(folder / NAME, files.to_json({**write_again, "sha256": _hash(write_again)}))


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        ValueError: saying in a few words what is wrong with it.
    """
    try:
        body = files.from_json((folder / NAME).read_bytes())
        claimed = body.pop("sha256")
    except FileNotFoundError:
        raise ValueError(f"{NAME} is missing") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{NAME} is not readable") from None
    if claimed != _hash(body):
        raise ValueError(f"{NAME} was changed")
    if not _is_manifest(body):  # whose hash is right all the same: made by hand
        raise ValueError(f"{NAME} is none of a checkpoint")
    return body


def _is_manifest(body: Mapping[str, Any]) -> bool:
    try:
        sizes = [size for leaf in body["leaves"].values() for size in leaf["shape"]]
        sizes += [known["bytes"] for known in body["files"].values()]
        words = [word for leaf in body["leaves"].values() for word in [leaf["dtype"]]]
        words += [known["sha256"] for known in body["files"].values()]
        numbers = body["metrics"].values()
    except (KeyError, AttributeError, TypeError):
        return False
    return (
        all(type(size) is int and size >= 0 for size in sizes)
        and all(isinstance(word, str) for word in words)
        and all(type(number) in (int, float) for number in numbers)
    )


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None if every bit is as it was written."""
    try:
        body = read(folder)
        for name, known in body["files"].items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{name} is not in the checkpoint's folder"
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != known["bytes"]:
                return f"{name} has {path.stat().st_size} bytes and not {known['bytes']}"
            if files.sha256(path) != known["sha256"]:
                return f"the content of {name} was changed"
    except (ValueError, OSError) as error:
        return str(error)
    return None


def check_fits(there: Mapping[str, Any], here: Mapping[str, Any], *, what: str) -> None:
    """Refuses a checkpoint of other leaves, shapes or dtypes than the code has.

    Raises:
        ValueError: in one line that names the first few leaves that differ.
    """
    found = []
    for name in sorted(there.keys() | here.keys()):
        if name not in here:
            found.append(f"{name} is there, not here")
        elif name not in there:
            found.append(f"{name} is here, not there")
        elif there[name] != here[name]:
            found.append(f"{name} is {_shown(there[name])} there, {_shown(here[name])} here")
    if found:
        more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        raise ValueError(f"{what} does not fit this code: {'; '.join(found[:_MAX_SHOWN])}{more}")


def _shown(leaf: Mapping[str, Any]) -> str:
    return f"{leaf['dtype']} {tuple(leaf['shape'])}"


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
