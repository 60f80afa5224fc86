"""The majority vote of the workers' signs."""

import jax
import optax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_workers, sum_workers
from reducers.mask import own_part
from reducers.reducer import Reducer


def sign_majority(axis_name: AxisName) -> Reducer:
    r"""Takes the sign that most workers have, of each coordinate: -1, 1, or 0 for a tie.

    .. math:: R(g_1, \dots, g_n)_j = \operatorname{sign}\Big(\sum_{i=1}^{n} \operatorname{sign}(g_{ij})\Big)

    The result does not scale with the gradients: the learning rate alone sets the size of a step, and gradients that
    are all the same become their signs.

    Args:
      axis_name: the worker axis or axes.

    Returns:
      A stateless reducer; dtypes are kept. Zero and NaN abstain. Its update takes ``contributes``, optional: a bool of
      each worker, whether it votes.

    >>> reducer = sign_majority("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([0.1, 0.2, -90.0]))
    Array([1., 1., 1.], dtype=float32)

    Reference: Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote is Communication Efficient And
    Fault Tolerant", ICLR 2019, arXiv 1810.05291. Differs from the paper in: votes are counted by an all-reduce of 8-bit
    integers (32-bit from 128 workers on), where the paper sends 1 bit each way; a tie is 0; momentum, which the paper
    keeps on each worker, is left to what stands before the reducer.
    """

    axes = axes_of(axis_name)

    def vote(g):
        ballot = jnp.int8 if num_workers(axes) <= jnp.iinfo(jnp.int8).max else jnp.int32  # counts are exact
        return (g > 0).astype(ballot) - (g < 0).astype(ballot)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        counts = sum_workers(jax.tree.map(vote, updates), axes, where=own_part(contributes))
        return jax.tree.map(lambda count, g: jnp.sign(count).astype(g.dtype), counts, updates), state

    return Reducer(optax.init_empty_state, update_fn, axis_name=axes, takes_mask="whole", numbers="floating")
