"""Arrival models: how many seconds each worker takes for its gradient.

An arrival model is a pure function ``(key, step, num_workers) -> seconds`` [num_workers] float32. It may be called
inside a traced program, with a traced ``step``. Every worker computes the same vector, so the workers agree on who is
late without communication. ``sample`` calls a model for many steps. ``make`` builds a model by its name:

>>> import jax
>>> model = make("shifted_exponential", shift_seconds=1.0, scale_seconds=0.5)
>>> seconds = model(jax.random.key(0), 7, 4)
>>> contributes, step_seconds = first_arrivals(seconds, 3)
>>> int(contributes.sum()), bool(step_seconds == sorted(seconds)[2])
(3, True)

The same (key, step) gives worker w the same bits for every layout and number of workers, whether the model is called
for one step, for many, or inside another program. This holds as far as XLA compiles an elementwise formula to the same
arithmetic each time, which the tests check on CPU. All workers of one compiled program agree in any case.
"""

from collections.abc import Callable
from typing import Any

import jax

from reducers import blocks
from reducers.arrivals.models import ARRIVALS, Arrivals
from reducers.arrivals.order import Arrived, deadline_arrivals, first_arrivals, k_batch_arrivals
from reducers.arrivals.sampling import batch_means, batch_seconds, expected_arrivals, sample
from reducers.arrivals.traces import read_trace

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
      **options: the model's options, which its signature checks.

    Returns:
      ``(key, step, num_workers) -> seconds``, compiled unless it is called inside another program.

    Raises:
      ValueError: one line, for a name, an option or a value that makes no sense.

    >>> make("constant", seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    >>> make("pareto", alpha=0.5)
    Traceback (most recent call last):
    ValueError: alpha=0.5: must be float in (1, inf)
    """
    model = blocks.build({"name": name, **options}, lookup=lookup)
    return jax.jit(model, static_argnums=2)  # exp and log alone differ in bits from those of a fused program
