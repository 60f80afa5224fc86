"""Losses and gradients that are not finite: the step that met them is undone, and told by worker and layer.

What a step measures anyway tells of them: a NaN stays in a sum of squares. So looking costs no pass over parameters
and no collective, and what is told of a bad step is of the very program that met it. A norm above 1.8e19, whose square
overflows, counts as not finite.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from parallel import AXES
from reducers import num_workers

OnNonfinite = Literal["stop", "skip", "ignore"]

_MAX_NAMED = 3  # workers, or layers, in a line


class NonfiniteError(RuntimeError):
    """A run met a number that is not finite, and was to stop there; one line."""


class Evidence(NamedTuple):
    """What a turn tells, on all workers the same: sums of its losses, squared norms of each of L leaves.

    Attributes:
      is_bad: [] bool, whether the turn is undone.
      losses: [W], of each worker's loss; of the gradients in the order of arrival, where workers do not wait.
      given: [W], of what each worker gave to the reducer; 0 where a worker does not count, as in ``losses``.
      layers: [L], the same, of each leaf and all workers.
      made: [2, L], of the reduced updates, and of what the optimizer made of them.
    """

    is_bad: Any
    losses: Any
    given: Any
    layers: Any
    made: Any


def squares(tree: Any) -> jax.Array:
    """Returns the squared norm of each leaf, [L] float32.

    >>> squares({"a": jnp.array([3.0, 4.0]), "b": jnp.ones(())})
    Array([25.,  1.], dtype=float32)
    """
    # Term by term what optax.tree.norm adds up, so that XLA computes it once for both.
    norms = [optax.tree.norm(leaf, squared=True).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(norms) if norms else jnp.zeros(0)


def own(layers: jax.Array, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns a worker's part of the evidence, to be summed over the workers; zeros if it does not count.

    Args:
      layers: [L], squared norm of each leaf of what it gives to the reducer.
      sums: its "loss", and "workers", 0 if it does not count.
    """
    counts = sums["workers"] > 0
    mine = counts & (jnp.arange(num_workers(AXES)) == lax.axis_index(AXES))
    return {
        "losses": jnp.where(mine, sums["loss"], 0),
        "given": jnp.where(mine, layers.sum(), 0),
        "layers": jnp.where(counts, layers, 0),
    }


def undo(is_bad: jax.Array, before: tuple[Any, Any], after: tuple[Any, Any], *, on_nonfinite: OnNonfinite) -> Any:
    """Returns (shared, local) after a turn; those before it if it was bad.

    With "skip" a bad step counts, so that the next batch comes. With "stop" its state stays as it is from then on,
    whatever is in flight: its step is negative, ``~step``, and a step that finds it so changes nothing.
    """
    stopped = before[0].step < 0
    undone = is_bad if on_nonfinite == "skip" else is_bad | stopped
    shared, local = optax.tree.where(undone, before, after)
    step = after[0].step
    if on_nonfinite == "stop":
        step = jnp.where(undone, jnp.minimum(before[0].step, ~before[0].step), step)
    return shared._replace(step=step), local


def step_of(shared: Any) -> Any:
    """Returns shared state with its step as it was before one was bad; canonical, on the host.

    >>> Shared = NamedTuple("Shared", [("step", Any)])
    >>> [int(step_of(Shared(np.int32(step))).step) for step in (7, ~7)]
    [7, 7]
    """
    return shared._replace(step=np.maximum(shared.step, ~shared.step))


def describe(evidence: Evidence, *, workers: Sequence[int], layers: Sequence[str]) -> str:
    """Returns what was not finite, in words; the sums of squares are told as norms.

    Args:
      evidence: of a bad turn, on the host.
      workers: [W] or fewer, whose the losses are.
      layers: [L], names of the leaves.

    >>> one, nan = np.ones(2), np.array([1.0, np.nan])
    >>> describe(Evidence(True, nan, nan, nan, np.stack([nan, nan])), workers=(4, 5), layers=("w", "b"))
    'loss of worker 5 is nan; gradient of worker 5 has norm nan in layer b'
    >>> describe(Evidence(True, one, one, one, np.stack([one, nan])), workers=(4, 5), layers=("w", "b"))
    "the optimizer's update has norm nan in layer b, though all that it was made of is finite"
    """

    def bad(values: Any, names: Sequence[Any]) -> tuple[list[str], str]:
        found = [(str(name), value) for name, value in zip(names, values, strict=False) if not np.isfinite(value)]
        return [name for name, _ in found], " and ".join(sorted({str(value) for _, value in found}))

    def named(noun: str, names: list[str]) -> str:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names[:_MAX_NAMED])}{more}"

    def in_layers(names: list[str]) -> str:
        return f" in {named('layer', names)}" if names else ""

    told = []
    names, values = bad(evidence.losses, workers)
    if names:
        told.append(f"loss of {named('worker', names)} is {values}")
    names, values = bad(evidence.given, workers)
    if names:
        where = in_layers(bad(evidence.layers, layers)[0])
        told.append(f"gradient of {named('worker', names)} has norm {values}{where}")
    for what, norms in zip(("reduced gradient", "optimizer's update"), evidence.made, strict=True):
        names, values = bad(norms, layers)
        if names and not told:
            told.append(f"the {what} has norm {values}{in_layers(names)}, though all that it was made of is finite")
    return "; ".join(told)
