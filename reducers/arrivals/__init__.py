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

from reducers.arrivals.composed import ARRIVALS, Arrivals, make
from reducers.arrivals.order import Arrived, deadline_arrivals, first_arrivals, k_batch_arrivals
from reducers.arrivals.sampling import batch_means, batch_seconds, expected_arrivals, sample
from reducers.arrivals.traces import read_trace

__all__ = [
    "ARRIVALS",
    "Arrivals",
    "Arrived",
    "batch_means",
    "batch_seconds",
    "deadline_arrivals",
    "expected_arrivals",
    "first_arrivals",
    "k_batch_arrivals",
    "make",
    "read_trace",
    "sample",
]
