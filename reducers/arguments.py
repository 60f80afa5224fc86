"""The arguments of an update, checked in one place: the numbers of its leaves, and which workers are counted."""

from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from reducers.mask import Mask
from reducers.options import in_one_line

# The leaves that a reducer takes; each kind includes those after it. "number" includes integers, "inexact" real and
# complex numbers, and "floating" only real ones. "any" is not checked.
Numbers: TypeAlias = Literal["any", "number", "inexact", "floating"]

_WORDS = {
    "number": "integers, or real or complex numbers of 16 bits or more",
    "inexact": "real or complex numbers of 16 bits or more",
    "floating": "real numbers of 16 bits or more",
}


def check_leaves(tree: Any, numbers: Numbers, *, key: str) -> None:
    """Raises ValueError for a leaf that a reducer cannot combine exactly, such as one of bools or of 8-bit floats.

    Args:
      tree: a tree of arrays, or of their shapes.
      numbers: what the reducer takes.
      key: name of the tree.

    >>> check_leaves({"w": jnp.ones(2), "b": jnp.ones(2, jnp.complex64)}, "floating", key="updates")
    Traceback (most recent call last):
    ValueError: updates['b']: of complex64, must be of real numbers of 16 bits or more
    """
    for path, leaf in jax.tree.leaves_with_path(tree) if numbers != "any" else ():
        if not _holds(dtype := _dtype(leaf), numbers):
            name = f"{key}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{name}: of {dtype}, must be of {_WORDS[numbers]}")


def _holds(dtype: Any, numbers: Numbers) -> bool:
    if not jnp.issubdtype(dtype, getattr(jnp, numbers)):
        return False
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return (jnp.iinfo(dtype).bits >= 8) if is_integer else (jnp.finfo(dtype).bits >= 16)


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype


def with_gradient(params: Any) -> Any:
    """Returns parameters with None for integers and bools, which have no gradient.

    >>> with_gradient({"w": jnp.ones(1), "count": jnp.zeros((), jnp.int32)})
    {'count': None, 'w': Array([1.], dtype=float32)}
    """
    return jax.tree.map(lambda p: p if jnp.issubdtype(_dtype(p), jnp.inexact) else None, params)


def has_float0(updates: Any) -> bool:
    """Returns whether a leaf is the gradient of integers, which reducers pass on as it is."""
    return any(map(_is_float0, jax.tree.leaves(updates)))


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def without_float0(updates: Any, tree: Any) -> Any:
    """Returns a tree, or None, with None for each leaf whose update has the dtype float0."""
    if tree is None:
        return None
    return jax.tree.map(lambda u, x: None if _is_float0(u) else x, updates, tree)


def with_float0(updates: Any, tree: Any) -> Any:
    """Puts the updates of float0 back into a tree that ``without_float0`` returned."""
    return jax.tree.map(lambda u, x: u if _is_float0(u) else x, updates, tree)


def check_mask(contributes: Any) -> None:
    """Raises ValueError unless ``contributes`` is the bool of one worker, a ``Mask``, or None.

    >>> check_mask(10)
    Traceback (most recent call last):
    ValueError: contributes=10: must be a bool of this worker, []; weights takes a number
    """
    if contributes is None or isinstance(contributes, bool | Mask):
        return
    is_array = hasattr(contributes, "dtype") and jnp.issubdtype(contributes.dtype, jnp.bool_)
    if not is_array or contributes.shape:
        given = f"contributes={in_one_line(contributes)}"
        raise ValueError(f"{given}: must be a bool of this worker, []; weights takes a number")


def check_weights(weights: Any) -> None:
    """Raises ValueError unless ``weights`` is a real number of one worker, or None.

    If its value is known while the program is traced, it must be finite and 0 or more; else
    ``reducers.mask.bits_of_weight`` makes an invalid weight NaN.

    >>> check_weights(-1.0)
    Traceback (most recent call last):
    ValueError: weights=-1.0: must be a number of this worker, [], finite and 0 or more in float32
    """
    if weights is None:
        return
    dtype = _dtype(weights) if hasattr(weights, "dtype") or isinstance(weights, int | float) else jnp.bool_
    is_number = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    is_number = is_number and not getattr(weights, "shape", ())
    if is_number and not isinstance(weights, jax.core.Tracer):
        value = float(np.asarray(weights))
        widest = jnp.finfo(jnp.result_type(float))
        is_number = value == 0 or float(widest.smallest_subnormal) <= value <= float(widest.max)
    if not is_number:
        given = f"weights={in_one_line(weights)}"
        in_dtype = f"in {jnp.result_type(float)}"
        hint = "; contributes takes a bool" if dtype == jnp.bool_ else ""
        raise ValueError(f"{given}: must be a number of this worker, [], finite and 0 or more {in_dtype}{hint}")
