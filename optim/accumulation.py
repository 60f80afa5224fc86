"""What a worker does with its batch before it communicates: gradients of parts, or optimizer steps on parts.

The batch of a worker and step is cut into ``count`` equal parts, taken in order. Up to 8 parts are unrolled, because a
scan around convolutions is slow on CPU: LeNet-5 with 8 parts of 4 examples, on 2 busy cores, takes 0.86 s scanned and
0.14 s unrolled. What it costs: compiling grows with the parts (2.6 s for one, 6.5 s for 8), and XLA on CPU keeps the
gradients of all parts (55 MB of temporaries; 8 MB scanned), so that micro-batches save no memory there. More parts are
scanned: 64 of BERT-Large would not be compiled in an hour.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.adasum import Tree, fold, pair
from reducers.registry import Registry

MAX_UNROLLED = 8  # parts


class Work(NamedTuple):
    """What one worker has come to with its batch.

    Attributes:
      updates: what it gives to the reducer.
      opt_state: of its part of the chain.
      model_state: BatchNorm statistics.
      sums: the parts' "loss", "correct" and "count" added up, and "squared_norm", the mean over the gradients that the
        chain was given.
      layers: the squared norm of each leaf of updates, [L], where it is taken.
    """

    updates: Any
    opt_state: Any
    model_state: Any
    sums: dict[str, jax.Array]
    layers: Any = None


class Accumulation(NamedTuple):
    """A way to take in a batch.

    Attributes:
      num_parts: into how many parts the batch is cut.
      work: ``(gradient, update, params, opt_state, model_state, parts) -> Work``, where ``parts`` is a sequence,
        ``gradient(params, opt_state, model_state, part)`` gives (gradients, model_state, sums) and
        ``update(gradients, opt_state, params)`` gives (updates, opt_state), as the worker's part of the chain does.
    """

    num_parts: int
    work: Callable[..., Work]


def micro_batches(
    *,
    count: Annotated[int, "[1, inf)"] = 1,
    combine: Literal["mean", "sum", "adasum"] = "mean",
    batch_size_per_worker: int,
) -> Accumulation:
    r"""Combines the gradients of the parts, all at the same parameters; then the chain sees one gradient.

    .. math:: g = C(\nabla \ell_1(\theta), \dots, \nabla \ell_k(\theta)), \qquad
        C = \frac{1}{k} \sum_j, \quad \sum_j, \quad \text{or Adasum, layer by layer}

    Clipping is of g. What Horovod's optimizer for PyTorch does is the sum: with ``backward_passes_per_step`` = k it
    adds the gradients up and then takes one step.

    Args:
      count: k; 1 is no accumulation.
      combine: C; "mean" is the gradient of the whole batch, where examples do not meet in BatchNorm or dropout.
      batch_size_per_worker: B, which k must divide.

    Raises:
      ValueError: if k does not divide B.

    Reference: Maleki et al., arXiv 2006.02924; horovod/torch/optimizer.py.
    """
    _check_divides(count, batch_size_per_worker)

    def work(gradient, update, params, opt_state, model_state, parts) -> Work:
        def one(model_state, part):
            found, model_state, sums = gradient(params, opt_state, model_state, part)
            return model_state, (found, sums)

        model_state, (combined, sums) = COMBINE[combine](one, model_state, parts)
        updates, opt_state = update(combined, opt_state, params)
        squared_norm = optax.tree.norm(combined) ** 2
        return Work(updates, opt_state, model_state, {**sums, "squared_norm": squared_norm})

    return Accumulation(count, work)


def local_steps(
    *, count: Annotated[int, "[1, inf)"], batch_size_per_worker: int, reducer_on: str = "updates"
) -> Accumulation:
    r"""Takes a step of the worker's own optimizer on each part, and gives the sum of these updates to the reducer.

    .. math:: \Delta = \sum_j u_j, \qquad u_j = \mathrm{optimizer}(\nabla \ell_j(\theta + u_1 + \dots + u_{j-1}))

    Clipping is of each part's gradient. It is local SGD with k steps, what Horovod's optimizer for TensorFlow is
    written to do: it steps on every pass and communicates the delta of ``backward_passes_per_step`` passes.

    All k steps have the learning rate of the server's step, which their optimizer's schedule is set to: warm-up and
    decay take as many server steps, and as many examples, whatever k. Advancing it k times as fast would end a schedule
    after a k-th of the run.

    Args:
      count: k.
      batch_size_per_worker: B, which k must divide; the examples of one step and worker stay B.
      reducer_on: must be "updates".

    Raises:
      ValueError: if k does not divide B, or the reducer is on gradients.

    Reference: Maleki et al., arXiv 2006.02924 (64K examples before communication); horovod/tensorflow/__init__.py.
    """
    _check_divides(count, batch_size_per_worker)
    if reducer_on != "updates":
        raise ValueError(f"name='local_steps': needs config.reducer_on='updates', not {reducer_on!r}")

    def work(gradient, update, params, opt_state, model_state, parts) -> Work:
        def one(state, part):
            moved, opt_state, model_state = state
            found, model_state, sums = gradient(moved, opt_state, model_state, part)
            updates, opt_state = update(found, opt_state, moved)
            moved = optax.apply_updates(moved, updates)
            return (moved, opt_state, model_state), (updates, sums, optax.tree.norm(found) ** 2)

        # The updates themselves are added up: a difference of parameters would have lost their low bits.
        (_, opt_state, model_state), (delta, sums, squared) = _sum(one, (params, opt_state, model_state), parts)
        return Work(delta, opt_state, model_state, {**sums, "squared_norm": squared / len(parts)})

    return Accumulation(count, work)


def split(batch: dict[str, jax.Array], *, key: jax.Array, count: int) -> list[tuple[dict[str, jax.Array], jax.Array]]:
    """Cuts a batch, [B, ...] each, into ``count`` parts with a key each, in order.

    >>> [part["x"].tolist() for part, _ in split({"x": jnp.arange(4)}, key=jax.random.key(0), count=2)]
    [[0, 1], [2, 3]]
    """
    if count == 1:
        return [(batch, key)]
    parts = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), batch)
    keys = jax.random.split(key, count)
    return [(jax.tree.map(lambda x, j=j: x[j], parts), keys[j]) for j in range(count)]


def _check_divides(count: int, batch_size_per_worker: int) -> None:
    if batch_size_per_worker % count:
        raise ValueError(f"count={count}: must divide config.batch_size_per_worker={batch_size_per_worker}")


def _sum(one: Callable, state: Any, parts: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the state after the last part, and the sum of what ``one(state, part) -> (state, values)`` gave."""

    def add(carry, part):
        state, total = carry
        state, values = one(state, part)
        return (state, optax.tree.add(total, values)), None

    if len(parts) > 1:
        one = jax.jit(one)  # is traced for the first part alone
    carry = one(state, parts[0])
    if len(parts) > MAX_UNROLLED:
        return jax.lax.scan(add, carry, jax.tree.map(lambda *x: jnp.stack(x), *parts[1:]))[0]
    for part in parts[1:]:
        carry, _ = add(carry, part)
    return carry


def _mean(one: Callable, state: Any, parts: Sequence[Any]) -> tuple[Any, Any]:
    state, (gradients, sums) = _sum(one, state, parts)
    return state, (jax.tree.map(lambda g: g / len(parts), gradients), sums)


def _adasum(one: Callable, state: Any, parts: Sequence[Any]) -> tuple[Any, Any]:
    """Keeps all gradients, which the tree needs; always unrolled."""
    gradients, sums = [], []
    for part in parts:
        state, (found, its_sums) = one(state, part)
        gradients.append(found)
        sums.append(its_sums)
    combined = jax.tree.map(lambda *g: fold(pair, jnp.stack(g), Tree(len(g))), *gradients)
    return state, (combined, functools.reduce(optax.tree.add, sums))


# name -> (one, state, parts) -> (state, (the parts' gradients combined, their sums added up))
COMBINE: dict[str, Callable[..., tuple[Any, Any]]] = {"adasum": _adasum, "mean": _mean, "sum": _sum}

ACCUMULATIONS = Registry(
    {"local_steps": local_steps, "micro_batches": micro_batches}, given={"batch_size_per_worker", "reducer_on"}
)

make = ACCUMULATIONS.make  # make(batch_size_per_worker=..., reducer_on=..., **config.accumulation)
