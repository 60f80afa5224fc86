"""A mask that every worker knows whole: which workers a reducer counts."""

from typing import Any, NamedTuple

import jax


class Mask(NamedTuple):
    """The bools of all workers, each of whom knows them, such as from arrival times: a reducer sends nothing for them.

    A reducer gets it as ``contributes`` that says so (``Reducer.takes_mask`` is "whole"); others get their own bool.

    Attributes:
      own: [] bool, whether this worker is counted.
      whole: [W] bool, the same on all workers.
    """

    own: jax.Array
    whole: jax.Array


def own_part(contributes: Any) -> Any:
    """Returns this worker's bool of a mask, whether it is known whole or not; None for none."""
    return contributes.own if isinstance(contributes, Mask) else contributes
