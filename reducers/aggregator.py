"""Reducers in optax's frame for gradients of single examples: ``optax.experimental.aggregating``."""

from collections.abc import Callable

import jax
import optax
from jax import numpy as jnp

from reducers.reducer import as_reducer

_AXIS = "gradient"
_OF_EACH = ("contributes", "overflowed", "weights")  # extra arguments with one value per gradient


def as_aggregator(
    make: Callable[[str], optax.GradientTransformation], *, num_gradients: int
) -> optax.GradientTransformationExtraArgs:
    """Returns a reducer as an aggregator of optax: it combines gradients that are stacked along a new first axis.

    The gradients are those of examples or of micro-batches on one device, which take the place of workers. Anything
    that is a function of a tree, such as clipping, can stand before it in ``optax.experimental.aggregating.process``,
    and any optimizer after it. ``process`` gives the extra arguments to all of them: put those that take none in
    ``optax.with_extra_args_support``.

    Args:
      make: ``axis_name -> reducer``, such as ``reducers.adasum``.
      num_gradients: n, the number of gradients.

    Returns:
      An ``Aggregator`` whose ``update`` takes leaves [n, ...] and returns leaves [...]. ``arrival_seconds`` [n],
      ``contributes`` [n] bool, ``overflowed`` [n] bool and ``weights`` [n] are passed on.

    Raises:
      ValueError: if the reducer has local workers, whose parameters differ; in ``update``, if a leaf has another
        number of gradients, or ``contributes``, ``overflowed`` or ``weights`` are not of all n.

    >>> import jax, jax.numpy as jnp, reducers
    >>> from optax.experimental import aggregating
    >>> identity = optax.with_extra_args_support(optax.identity())  # process hands it the weights, too
    >>> mean = as_aggregator(reducers.mean, num_gradients=2)
    >>> optimizer = aggregating.process(identity, mean, optax.sgd(1.0))
    >>> gradients = jnp.array([[1.0, 0.0], [0.0, 2.0]])  # of two examples
    >>> jax.jit(optimizer.update)(gradients, optimizer.init(jnp.zeros(2)), weights=jnp.array([3.0, 1.0]))[0]
    Array([-0.75, -0.5 ], dtype=float32)
    """
    from optax.experimental import aggregating  # not every optax that suffices for the reducers has it

    reducer = as_reducer(make(_AXIS))
    if reducer.local_workers != "never":
        raise ValueError("make: must make a reducer whose every update emits what it reduces, not one of local workers")

    def init(params):
        return jax.vmap(reducer.init, in_axes=None, axis_size=num_gradients)(params)

    def update(gradients, state, params=None, **extra_args):
        counts = {leaf.shape[:1] for leaf in jax.tree.leaves(gradients)}
        if counts - {(num_gradients,)}:
            raise ValueError(f"num_gradients={num_gradients}: leaves have {sorted(counts)} gradients")
        own = {name: extra_args[name] for name in _OF_EACH if extra_args.get(name) is not None}
        shared = {name: value for name, value in extra_args.items() if name not in _OF_EACH}
        for name, value in own.items():
            if jnp.shape(value) != (num_gradients,):
                raise ValueError(
                    f"{name}: of shape {jnp.shape(value)}, must be one of each gradient, ({num_gradients},)"
                )

        def of_each(gradient, state, own):
            return reducer.update(gradient, state, params, **own, **shared)

        combined, state = jax.vmap(of_each, axis_name=_AXIS, axis_size=num_gradients)(gradients, state, own)
        return jax.tree.map(lambda leaf: leaf[0], combined), state  # they are the same at each place

    return aggregating.Aggregator(init, update)
