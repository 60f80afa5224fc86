"""Ranges of options, and checks of those of a call in code, which are made as those of a config are."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.registry import describe, matches, parameters, plain_type

# Numbers with the range that several options have.
Count = Annotated[int, "[1, inf)"]
Natural = Annotated[int, "[0, inf)"]
Positive = Annotated[float, "(0, inf)"]
NonNegative = Annotated[float, "[0, inf)"]
Fraction = Annotated[float, "[0, 1)"]
Seed = Annotated[int, "[0, 4294967295]"]


def check_options(constructor: Callable, /, **options: Any) -> None:
    """Raises ValueError unless every option has the type that the constructor annotates, and lies in its range.

    In code a number may also be a scalar of NumPy or JAX. A traced one, as ``optax.inject_hyperparams`` makes it, has
    no value yet, so that its type alone is checked.

    Args:
      constructor: the function or class that takes the options.
      **options: their values.

    >>> from reducers import adacons
    >>> check_options(adacons, momentum=1.5)
    Traceback (most recent call last):
    ValueError: momentum=1.5: must be float in [0, 1)
    """
    annotations = {key: parameter.annotation for key, parameter in parameters(constructor).items()}
    for key, value in options.items():
        if not _matches(annotations[key], value):
            raise ValueError(f"{key}={in_one_line(value)}: must be {describe(annotations[key])}")


def check_static(**numbers: Any) -> None:
    """Raises ValueError for numbers that are arrays, since these numbers decide which program is traced.

    >>> check_static(num_trimmed=jnp.array(1))
    Traceback (most recent call last):
    ValueError: num_trimmed=Array(1, dtype=int32, ...): must be a Python int; optax.inject_hyperparams takes its name in
    static_args
    """
    for key, value in numbers.items():
        if isinstance(value, jax.Array):
            given = f"{key}={in_one_line(value)}"
            raise ValueError(f"{given}: must be a Python int; optax.inject_hyperparams takes its name in static_args")


def in_one_line(value: Any) -> str:
    """Returns the repr of a value, with blanks for line breaks.

    >>> in_one_line(np.eye(2))
    'array([[1., 0.], [0., 1.]])'
    """
    return " ".join(repr(value).split())


def _matches(annotation: Any, value: Any) -> bool:
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    if not is_array or value.ndim:
        return matches(annotation, value)
    if isinstance(value, jax.core.Tracer):
        kinds = {int: (jnp.integer,), float: (jnp.integer, jnp.floating)}.get(plain_type(annotation), ())
        return any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
    return matches(annotation, value.item())
