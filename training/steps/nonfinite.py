"""Detects, skips and reports steps with NaN or infinity.

A NaN stays in a sum of squares, so the norms that a step measures anyway show it: the check costs no pass over the
parameters and no collective, and the report comes from the very program that met the NaN. A norm above 1.8e19, whose
square overflows float32, counts as not finite.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from parallel import AXES, WHOLE, Partition
from reducers import all_finite, num_workers
from reducers.mesh import all_agree
from training.train_state import PER_WORKER, TrainState

OnNonfinite = Literal["stop", "skip", "ignore"]

_MAX_NAMED = 3  # workers, or layers, in a line


class NonfiniteError(RuntimeError):
    """A loss, gradient or update was not finite, and the run stops there; the message is one line."""


class NonfiniteReport(NamedTuple):
    """Losses and squared norms of a step, from which bad workers and layers are found; equal on all workers.

    Attributes:
      is_bad: [] bool, whether any number is not finite, so that the step is undone.
      losses: [W], each worker's loss; in asynchronous runs the loss of each gradient in the order of arrival.
      given: [W], squared norm of the updates that each worker gave to the reducer; workers that do not count have 0,
        here and in ``losses``.
      layers: [L], the same squared norms, leaf by leaf, summed over the workers.
      made: [2, L], squared norms of the reduced updates, and of the optimizer's updates made from them.
    """

    is_bad: Any
    losses: Any
    given: Any
    layers: Any
    made: Any


def own_part(layers: jax.Array, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns one worker's part of the report, to be summed over the workers; zeros if the worker does not count.

    Args:
      layers: [L], squared norm of each leaf that the worker gives to the reducer.
      sums: its "loss", and "workers": 0 if the worker does not count.
    """
    counts = sums["workers"] > 0
    is_own = counts & (jnp.arange(num_workers(AXES)) == lax.axis_index(AXES))
    return {
        "losses": jnp.where(is_own, sums["loss"], 0),
        "given": jnp.where(is_own, layers.sum(), 0),
        "layers": jnp.where(counts, layers, 0),
    }


# ---- wrappers of an update ---------------------------------------------------------------------------------------

# (state, reduced) -> (state, metrics); the metrics hold "squares", [2, L], as ``NonfiniteReport.made``.
UpdateFunction = Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]]


def skip_overflow(update: UpdateFunction, *, partition: Partition = WHOLE) -> UpdateFunction:
    """Wraps an update: shared state stays as it was if the reduced updates overflowed, on all workers alike.

    Overflow means that the reduced updates are not all finite, or that they ``overflowed``. The step still counts, and
    the workers keep the state of their own optimizers, as those of Adasum's authors do.
    """

    def skipping(state, reduced):
        after, metrics = update(state, reduced)
        skipped = ~all_agree(all_finite(reduced.updates), partition.axes) | reduced.overflowed
        kept = {name: getattr(after, name) for name in ("step", "free_at", *PER_WORKER)}
        after = optax.tree.where(skipped, state._replace(**kept), after)
        metrics["update_norm"] = jnp.where(skipped, 0, metrics["update_norm"])
        return after, {**metrics, "skipped": skipped.astype(jnp.float32)}

    return skipping


def skip_nonfinite(
    update: UpdateFunction, *, then: Literal["stop", "skip"], look_at: Literal["all", "loss"]
) -> UpdateFunction:
    """Wraps an update: all state stays as it was if a number is not finite, on all workers alike.

    Args:
      update: the update.
      then: after "skip" the step counts, so that the next batch comes; after "stop" the state is frozen, see ``undo``.
      look_at: "all" checks the losses, the norms of what workers give and of its reduction, and that of the update;
        "loss" checks the losses alone; ``skip_overflow`` handles the rest.

    Returns:
      The update, whose metrics hold a ``NonfiniteReport`` as "nonfinite".
    """

    def checking(state, reduced):
        after, metrics = update(state, reduced)
        norms = (reduced.report["given"], metrics["squares"]) if look_at == "all" else ()
        is_bad = ~all_finite((reduced.totals["loss"], norms))
        if then == "skip":
            metrics["skipped"] = jnp.maximum(metrics.get("skipped", 0.0), is_bad.astype(jnp.float32))
        report = NonfiniteReport(is_bad, **reduced.report, made=metrics["squares"])
        return undo(is_bad, state, after, then=then), {**metrics, "nonfinite": report}

    return checking


def undo(is_bad: jax.Array, before: TrainState, after: TrainState, *, then: OnNonfinite) -> TrainState:
    """Returns the state after a step, or the one before it if the step was bad.

    With "stop" the bad step sets ``stopped``, and later steps, already in flight, change nothing. So the latest state
    is the last good one.
    """
    if then == "skip":
        return optax.tree.where(is_bad, before, after)._replace(step=after.step, free_at=after.free_at)
    undone = is_bad | before.stopped
    return optax.tree.where(undone, before, after)._replace(stopped=undone)


# ---- the report in words -----------------------------------------------------------------------------------------


def describe(report: NonfiniteReport, *, workers: Sequence[int], layers: Sequence[str]) -> str:
    """Describes the numbers that were not finite, with norms instead of their squares.

    Args:
      report: report of a bad step, on the host.
      workers: [W] or fewer, the workers of ``report.losses``.
      layers: [L], the leaves' names.

    >>> one, nan = np.ones(2), np.array([1.0, np.nan])
    >>> describe(NonfiniteReport(True, nan, nan, nan, np.stack([nan, nan])), workers=(4, 5), layers=("w", "b"))
    'loss of worker 5 is nan; gradient of worker 5 has norm nan in layer b'
    >>> describe(NonfiniteReport(True, one, one, one, np.stack([one, nan])), workers=(4, 5), layers=("w", "b"))
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

    parts = []
    names, values = bad(report.losses, workers)
    if names:
        parts.append(f"loss of {named('worker', names)} is {values}")
    names, values = bad(report.given, workers)
    if names:
        where = in_layers(bad(report.layers, layers)[0])
        parts.append(f"gradient of {named('worker', names)} has norm {values}{where}")
    for what, norms in zip(("reduced gradient", "optimizer's update"), report.made, strict=True):
        names, values = bad(norms, layers)
        if names and not parts:
            parts.append(f"the {what} has norm {values}{in_layers(names)}, though all that it was made of is finite")
    return "; ".join(parts)
