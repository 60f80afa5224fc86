"""The average of a schedule-free optimizer: the parameters at which its run is evaluated, saved and exported.

Such an optimizer computes gradients at y, an interpolation of its own iterates z and of their average x. The parameters
of a run are y; x is better, and is what remains in place of a decaying learning rate.

Reference: Defazio et al., The Road Less Scheduled, arXiv 2405.15682; optax.contrib.schedule_free.
"""

from typing import Any

import jax
import optax
from optax import contrib


def state_in(opt_state: optax.OptState) -> contrib.ScheduleFreeState | None:
    """Returns the state of a schedule-free optimizer, which may be a part of a chain; None if there is none.

    >>> state_in(optax.sgd(0.1).init({"w": 0.0})) is None
    True
    """

    def is_one(node: Any) -> bool:
        return isinstance(node, contrib.ScheduleFreeState)

    return next(filter(is_one, jax.tree.leaves(opt_state, is_leaf=is_one)), None)


def average(opt_state: optax.OptState, params: optax.Params) -> optax.Params | None:
    r"""Returns the average of a schedule-free optimizer; None for any other optimizer.

    .. math:: x = \frac{y - (1 - \beta_1) z}{\beta_1}

    Args:
        opt_state: after an update.
        params: y, the parameters after it.
    """
    state = state_in(opt_state)
    return None if state is None else contrib.schedule_free_eval_params(state, params)
