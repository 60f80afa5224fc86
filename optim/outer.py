"""Outer optimizers: what is done with the workers' combined progress, before the shared parameters take it.

The progress R of one round is a gradient for them, with its sign turned: :math:`z <- z + outer(-R)`. Plain SGD with
rate 1 is none. With momentum it is SlowMo or BMUF, with Nesterov's momentum DiLoCo.
"""

from collections.abc import Callable, Mapping
from typing import Any

import optax

from optim.optimizers import OPTIMIZERS, UNFIT, Optimizers


def no_outer() -> optax.GradientTransformationExtraArgs:
    """Adds the combined progress to the shared parameters as it is."""
    return optax.with_extra_args_support(optax.identity())


class _Outers(Optimizers):
    def find(self, name: Any) -> Callable:
        """Returns the constructor; all but that of "none" are optimizers."""
        return no_outer if name == "none" else super().find(name)


OUTERS = _Outers({**OPTIMIZERS, "none": no_outer}, refused=UNFIT, makes=optax.GradientTransformation)
"""The names of a config's ``outer`` block: those of its ``optimizer``, whose ``learning_rate`` is constant here."""


def make(block: Mapping[str, Any]) -> optax.GradientTransformationExtraArgs:
    """Builds the outer optimizer of a config block, as a transformation of the combined progress.

    Args:
      block: `name`, and the optimizer's own keys, its constant `learning_rate` among them.

    Raises:
      ValueError: one line: key, value, what is allowed.

    >>> outer = make({"name": "sgd", "learning_rate": 0.5})
    >>> float(outer.update(2.0, outer.init(0.0))[0])
    1.0
    """
    outer = OUTERS.make(**block)
    if block["name"] == "none":
        return outer
    return optax.with_extra_args_support(optax.chain(optax.scale(-1.0), outer))
