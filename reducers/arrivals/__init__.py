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

from reducers.arrivals.models import ARRIVALS, Arrivals, make
from reducers.arrivals.order import Arrived, deadline_arrivals, first_arrivals
from reducers.arrivals.sampling import batch_means, batches, expected_arrivals, num_recorded, sample
from reducers.arrivals.traces import read_trace, replays_arrivals
