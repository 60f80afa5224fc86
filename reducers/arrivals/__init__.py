"""Who is late, and by how much: time as data.

An *arrival model* says how many seconds each worker takes for its gradient, as a pure function
``(key, step, num_workers) -> seconds`` [num_workers] float32. It may be called inside a traced program, with a traced
``step``, and gives every worker the same vector, so that nobody communicates to agree on who is late; ``sample`` calls
it in bulk. A model is built by name:

>>> import jax
>>> model = make("shifted_exponential", shift_seconds=1.0, scale_seconds=0.5)
>>> seconds = model(jax.random.key(0), 7, 4)
>>> contributes, step_seconds = first_arrivals(seconds, 3)
>>> int(contributes.sum()), bool(step_seconds == sorted(seconds)[2])
(3, True)

The same (key, step) gives worker w the same bits whatever the layout, the number of workers, or the way of calling
(at once, in bulk, inside another program), as far as XLA compiles an elementwise formula to the same arithmetic each
time; the tests hold it on CPU. All workers of one compiled program agree in any case.

    python -m reducers.arrivals --model=lognormal --workers=100 --sigma=0.5

prints the distribution of the k-th arrival.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from reducers import blocks
from reducers.arrivals.composed import markov, mixture, scripted, slow_workers
from reducers.arrivals.distributions import constant, lognormal, none, pareto, shifted_exponential
from reducers.arrivals.order import Arrived, deadline_arrivals, first_arrivals, k_batch_arrivals
from reducers.arrivals.presets import paper_cluster
from reducers.arrivals.sampling import batch_means, batch_seconds, expected_arrivals, sample
from reducers.arrivals.traces import read_trace, trace

__all__ = [
    "ARRIVALS",
    "GIVEN",
    "Arrivals",
    "Arrived",
    "batch_means",
    "batch_seconds",
    "deadline_arrivals",
    "expected_arrivals",
    "first_arrivals",
    "k_batch_arrivals",
    "lookup",
    "make",
    "read_trace",
    "sample",
]

Arrivals: TypeAlias = Callable[[jax.Array, Any, int], jax.Array]

ARRIVALS: dict[str, Callable[..., Arrivals]] = {
    "constant": constant,
    "lognormal": lognormal,
    "markov": markov,
    "mixture": mixture,
    "none": none,
    "paper_cluster": paper_cluster,
    "pareto": pareto,
    "scripted": scripted,
    "shifted_exponential": shifted_exponential,
    "slow_workers": slow_workers,
    "trace": trace,
}

# What the program supplies: nothing; every parameter of a model is a config key.
GIVEN: frozenset[str] = frozenset()


def lookup(name: str) -> Callable[..., Arrivals]:
    """Returns the model's constructor; its signature is the schema of a config's ``arrivals`` block.

    Raises:
      ValueError: if no model has that name; says which there are.
    """
    return blocks.find(ARRIVALS, name)


def make(name: str, **options: Any) -> Arrivals:
    """Builds the arrival model called ``name``: ``make(**config.arrivals)``.

    Args:
      name: a key of ``ARRIVALS``.
      **options: the model's own, checked by its signature.

    Returns:
      ``(key, step, num_workers) -> seconds``, compiled where it is not called inside another program.

    Raises:
      ValueError: one line, for a name, an option or a value that makes no sense.

    >>> make("constant", seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    >>> make("pareto", alpha=0.5)
    Traceback (most recent call last):
    ValueError: alpha=0.5: must be float in (1, inf)
    """
    model = blocks.build({"name": name, **options}, lookup=lookup)
    return jax.jit(model, static_argnums=2)  # op by op, exp and log would differ in bits from the fused program
