"""A scale that is found while training: as large as half precision can hold, and smaller after each overflow."""

import dataclasses
from typing import Annotated, Any, NamedTuple, TypeAlias

import jax
from jax import numpy as jnp

from reducers.options import Count, check_options

# A scale and its inverse are normal numbers: XLA divides by multiplying with the inverse, and takes a subnormal one for
# 0, so that every quotient would silently be 0.
SMALLEST, LARGEST = 2.0**-126, 2.0**125
ScaleValue: TypeAlias = Annotated[float, f"[{SMALLEST}, {LARGEST}]"]


class Scale(NamedTuple):
    """Where a scale stands: arrays, for the state of a transformation."""

    value: jax.Array  # [] float32, the factor
    good_steps: jax.Array  # [] int32, finite ones since the last change


@dataclasses.dataclass(frozen=True)
class DynamicScale:
    r"""The rule by which a scale s grows and shrinks.

    .. math:: s \leftarrow \begin{cases} b s & \text{after an overflow} \\
        g s & \text{after } n \text{ finite steps in a row} \end{cases}

    If the factors are powers of two, scaling changes no bit of numbers that neither overflow nor underflow.

    Args:
      initial_scale: s at the start, from 2^-126 to 2^125, in which s stays.
      growth_interval: n, in steps.
      growth_factor: g, above 1.
      backoff_factor: b, in (0, 1).

    Raises:
      ValueError: for a value outside its range.

    >>> rule = DynamicScale(initial_scale=8.0, growth_interval=2)
    >>> scale = rule.init()
    >>> for is_finite in (False, True, True, True):
    ...   scale = rule.update(scale, is_finite)
    ...   print(float(scale.value), int(scale.good_steps))
    4.0 0
    4.0 1
    8.0 0
    8.0 1

    Reference: the scalers of Apex, as in the BERT code of Adasum's authors. ``flax.training.dynamic_scale`` has the
    same rule for the loss alone (and grows one step later); this one serves communicated updates too, without flax.
    """

    initial_scale: ScaleValue
    growth_interval: Count = 2000
    growth_factor: Annotated[float, "(1, inf)"] = 2.0
    backoff_factor: Annotated[float, "(0, 1)"] = 0.5

    def __post_init__(self):
        check_options(type(self), **vars(self))

    def init(self) -> Scale:
        """Returns the scale before the first step."""
        return Scale(jnp.asarray(self.initial_scale, jnp.float32), jnp.zeros((), jnp.int32))

    def update(self, scale: Scale, is_finite: Any) -> Scale:
        """Returns the scale after a step, given whether all of its values were finite."""
        good_steps = jnp.where(is_finite, scale.good_steps + 1, 0)
        grows = good_steps >= self.growth_interval
        factor = jnp.where(is_finite, jnp.where(grows, self.growth_factor, 1.0), self.backoff_factor)
        value = jnp.clip(scale.value * factor, SMALLEST, LARGEST)
        return Scale(value, jnp.where(grows, 0, good_steps))


def all_finite(tree: Any) -> jax.Array:
    """Returns whether no leaf has a NaN or an Inf, [] bool.

    >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.inf)}))
    False
    """
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)], bool))
