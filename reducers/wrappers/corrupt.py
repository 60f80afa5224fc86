"""Workers that send something else than their gradients, to test how a reducer copes."""

from typing import Any, Literal, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_workers, sum_workers
from reducers.collectives.backend import each
from reducers.dtypes import as_real, wide
from reducers.gram.scales import nonzero, power_of_two
from reducers.options import Positive, check_options
from reducers.reducer import Combine, Reducer
from reducers.report import who_counts
from reducers.sums.mean import combiner_of

GARBAGE = 1e6
_STRENGTHS = {"little": 1.5, "inner_product": 2.0}


class CorruptState(NamedTuple):
    """State of ``corrupt``: the number of updates, and the state of the reducer inside it."""

    num_updates: jax.Array
    combine: Any


def corrupt(
    axis_name: AxisName,
    *,
    workers: tuple[int, ...] = (0,),
    how: Literal["garbage", "nan", "copy", "flip", "little", "inner_product"] = "garbage",
    strength: Positive | None = None,
    combine: Combine = None,
) -> Reducer:
    r"""Lets some workers send something else than their gradients, before another reducer combines them all.

    .. math:: R'(g_1, \dots, g_n) = R(h_1, \dots, h_n), \qquad h_i = \begin{cases} \mathrm{corrupt}(g_i) &
        i \in \mathrm{workers} \\ g_i & \text{else} \end{cases}

    Args:
      axis_name: the worker axis or axes.
      workers: the indices of these workers.
      how: what they send: "garbage", normal numbers times a million (in float16 mostly infinities), drawn anew for each
        worker and update; "nan"; "copy", the gradient of the first worker that is not among them; "flip", the negative
        gradient; "little", the mean plus ``strength`` times the standard deviation (over n - 1), coordinate by
        coordinate, or "inner_product", minus ``strength`` times the mean, both of the other workers that are counted.
      strength: a factor of "little", where None is 1.5, and of "inner_product", where None is 2.
      combine: a reducer; None is ``mean``.

    Returns:
      A reducer with the facts of ``combine``; with garbage, which has a scale of its own, it is not homogeneous.

    Raises:
      ValueError: for an unknown ``how``, or a strength outside its range; when traced, for a worker that does not
        exist, or if no worker stays honest.

    >>> reducer = corrupt("worker", workers=(2,), how="flip")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 1.0, 4.0]))[0]
    Array(-0.6666667, dtype=float32)

    Reference: the attacks of the literature on Byzantine workers; values as this project's tests need them. "little" is
    that of Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
    arXiv 1902.06156; "inner_product" that of Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by
    Inner Product Manipulation", arXiv 1903.03936; "copy" is "mimic" of Karimireddy, He, Jaggi, arXiv 2006.09365. All
    three are known through the code of ByzFL, whose defaults these are. Differs from the last paper in: "mimic" first
    looks for the worker whose gradients are the best to copy (from memory); here, as in the code, it is the first.
    """
    check_options(corrupt, workers=workers, how=how, strength=strength)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)

    def init_fn(params):
        return CorruptState(jnp.zeros((), jnp.int32), combiner.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        worker = lax.axis_index(axes)
        count = num_workers(axes)
        if beyond := [w for w in workers if not 0 <= w < count]:
            raise ValueError(f"workers={workers}: {beyond[0]} is none of the {count} workers")
        honest = next((w for w in range(count) if w not in workers), None)
        if honest is None:
            raise ValueError(f"workers={workers}: leaves none of the {count} workers as it is")
        is_corrupt = (worker == jnp.array(workers, jnp.int32)).any()
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), state.num_updates), worker)
        leaves, treedef = jax.tree.flatten(updates)
        if how == "copy":
            sent = sum_workers(leaves, axes, where=worker == honest)
        elif how in _STRENGTHS:
            counted = who_counts(contributes=extra_args.get("contributes"), weights=extra_args.get("weights"))
            is_honest = ~is_corrupt if counted is None else ~is_corrupt & counted
            factor = _STRENGTHS[how] if strength is None else strength
            sent = _of_the_others(leaves, axes, how=how, where=is_honest, factor=factor)
        elif how == "garbage":
            keys = jax.random.split(key, len(leaves))
            sent = each(lambda k, g: GARBAGE * jax.random.normal(k, jnp.shape(g)), list(keys), leaves)
        else:
            sent = [-g if how == "flip" else jnp.full_like(g, jnp.nan) for g in leaves]
        given = [
            jnp.where(is_corrupt, x.astype(g.dtype), g) if g.size else g for x, g in zip(sent, leaves, strict=True)
        ]
        result, inner = combiner.update(jax.tree.unflatten(treedef, given), state.combine, params, **extra_args)
        return result, CorruptState(state.num_updates + 1, inner)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=combiner.takes_mask,
        takes_weights=combiner.takes_weights,
        homogeneous=combiner.homogeneous and how != "garbage",
        numbers="inexact",
    )


def _of_the_others(
    leaves: list[jax.Array], axes: tuple[str, ...], *, how: str, where: jax.Array, factor: Any
) -> list[jax.Array]:
    """Returns what follows from the mean and the standard deviation over some workers, like the leaves."""
    real = [wide(as_real(g)) for g in leaves]
    (total,) = sum_workers([jnp.ones((), jnp.float32)], axes, where=where)
    count = jnp.maximum(total, 1)
    means = [x / count.astype(x.dtype) for x in sum_workers(real, axes, where=where)]
    if how == "inner_product":
        sent = [-factor * mean for mean in means]
    else:
        away = [x - mean for x, mean in zip(real, means, strict=True)]
        largest = sum_workers([jnp.abs(x).max(initial=0) for x in away], axes, where=where)
        scales = [nonzero(power_of_two(x)) for x in largest]  # so that squares neither overflow nor vanish
        squares = [jnp.square(x / scale) for x, scale in zip(away, scales, strict=True)]
        sums = sum_workers(squares, axes, where=where)
        variances = [x / jnp.maximum(count - 1, 1).astype(x.dtype) for x in sums]
        parts = zip(means, scales, variances, strict=True)
        sent = [mean + factor * scale * jnp.sqrt(variance) for mean, scale, variance in parts]
    return [lax.complex(*x) if jnp.iscomplexobj(g) else x for x, g in zip(sent, leaves, strict=True)]
