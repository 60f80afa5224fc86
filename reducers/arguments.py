"""The arguments of an update, checked in one place: the numbers of its leaves, and which workers are counted."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
from jax import numpy as jnp

from reducers.options import in_one_line

# Which leaves a reducer takes, each kind with those after it: numbers, of which "inexact" ones are real or complex, and
# "floating" ones are real. "any" is not checked.
Numbers: TypeAlias = Literal["any", "number", "inexact", "floating"]

_WORDS = {
    "number": "integers, or real or complex numbers of 16 bits or more",
    "inexact": "real or complex numbers of 16 bits or more",
    "floating": "real numbers of 16 bits or more",
}


def check_leaves(tree: Any, numbers: Numbers, *, key: str) -> None:
    """Raises ValueError for a leaf that a reducer would not combine rightly, such as one of bools or of 8-bit floats.

    Args:
      tree: of arrays, or of their shapes.
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
    """Returns parameters without those of integers and bools, which have no gradient.

    >>> with_gradient({"w": jnp.ones(1), "count": jnp.zeros((), jnp.int32)})
    {'count': None, 'w': Array([1.], dtype=float32)}
    """
    return jax.tree.map(lambda p: p if jnp.issubdtype(_dtype(p), jnp.inexact) else None, params)


def around_float0(update: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an update function that hands leaves of float0 on as they are, which are the gradients of integers."""

    def update_fn(updates, state, params=None, **extra_args):
        if not any(map(_is_float0, jax.tree.leaves(updates))):
            return update(updates, state, params, **extra_args)
        without = lambda tree: jax.tree.map(lambda u, x: None if _is_float0(u) else x, updates, tree)  # noqa: E731
        result, state = update(without(updates), state, None if params is None else without(params), **extra_args)
        return jax.tree.map(lambda u, r: u if _is_float0(u) else r, updates, result), state

    return update_fn


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def check_mask(contributes: Any) -> None:
    """Raises ValueError unless ``contributes`` is the bool of one worker, or None.

    >>> check_mask(10)
    Traceback (most recent call last):
    ValueError: contributes=10: must be a bool of this worker, []; a number is no weight
    """
    if contributes is None or isinstance(contributes, bool):
        return
    is_array = hasattr(contributes, "dtype") and jnp.issubdtype(contributes.dtype, jnp.bool_)
    if not is_array or contributes.shape:
        given = f"contributes={in_one_line(contributes)}"
        raise ValueError(f"{given}: must be a bool of this worker, []; a number is no weight")
