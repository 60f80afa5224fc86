"""Times compiled reducers in turns with the mean, in one process."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from benchmarks.kit import taking_turns
from benchmarks.kit.candidates import BASELINE, Candidate, parse
from benchmarks.kit.command import Log
from benchmarks.kit.leaves import Leaves
from benchmarks.kit.result import Measured
from parallel import AXES, Layout, configure_cpu_devices, default_cpu_devices, keep_freed_memory, map_devices
from reducers.leaves import num_bytes


class Program(NamedTuple):
    """A reducer, mapped over lanes and devices as in the train step, and its state."""

    call: Any
    state: Any

    def seconds(self, gradients: list[jax.Array]) -> float:
        """Returns the seconds of a call, until its results are ready."""
        return taking_turns.timed(lambda: jax.block_until_ready(self.call(gradients, self.state)))


def make_layout(num_workers: int, *, num_devices: int | None = None) -> Layout:
    """Returns the layout of workers on this process's devices; by default a CPU has the most that divide them, up to 8.

    The benchmark measures collectives between devices, even if there are more devices than cores.
    """
    keep_freed_memory()
    configure_cpu_devices(num_workers, num_devices=num_devices or default_cpu_devices(num_workers))
    return Layout.of(num_workers, num_devices=num_devices)


def measure(
    what: str,
    leaves: Leaves,
    candidates: Sequence[Candidate],
    *,
    layout: Layout,
    repeats: int,
    max_seconds: float = math.inf,
    log: Log = lambda line: None,
) -> list[Measured]:
    """Measures reducers on one set of leaves: the time of each over the mean's, its traffic, the size, the mean's time.

    A round calls a, mean, b, mean, ..., so that a slow phase of the machine slows both. The first call of each warms up
    and is not counted. Each call finishes before the next one starts.

    Args:
      what: a description of the leaves.
      leaves: the leaves of one worker's gradient.
      candidates: the reducers to measure.
      layout: W workers as D devices x L lanes; a reducer is called as in the train step, with one result per device.
      repeats: the number of rounds.
      max_seconds: the limit for all rounds of one reducer; a reducer whose first call shows that it needs more is
        refused.
      log: called with lines of progress.
    """
    where = f"{layout.num_devices} devices, {what}"
    gradients = random_gradients(leaves, layout)
    mean = compile_reducer(parse(BASELINE), leaves, layout)
    mean.seconds(gradients)
    programs: dict[str, Program] = {}
    sent: dict[str, float] = {}
    refused: dict[str, str] = {}
    for candidate in candidates:
        label = candidate.label
        log(f"{where}: compiling {label}")
        try:
            program = compile_reducer(candidate, leaves, layout)
            sent[label] = candidate.traffic(leaves, num_workers=layout.num_workers).bytes_per_worker
        except (TypeError, ValueError) as error:  # a TypeError names an argument that its update needs
            refused[label] = str(error).partition("\n")[0]
            continue
        first = program.seconds(gradients)
        if first * repeats > max_seconds:
            refused[label] = f"{repeats} rounds of {first:.1f} s each would take more than max_seconds={max_seconds:g}"
        else:
            programs[label] = program
    of_mean: list[float] = []
    ratios: dict[str, list[float]] = {label: [] for label in programs}
    for number in range(repeats):
        log(f"{where}: round {number + 1} of {repeats}")
        for label, program in programs.items():
            own = program.seconds(gradients)
            of_mean.append(mean.seconds(gradients))
            ratios[label].append(own / of_mean[-1])
    size = num_bytes(leaves)
    found = []
    for candidate in candidates:
        label = candidate.label
        name, reason = f"{label} over mean, {where}", refused.get(label, "")
        found.append(Measured(name, ratios.get(label, []), target=candidate.target, missing=reason))
    found += [Measured(f"{label} sends, {where}", [count / size], "gradients") for label, count in sent.items()]
    if of_mean:
        found.append(Measured(f"gradient, {where}", [sum(leaf.size for leaf in leaves)], "floats"))
        found.append(Measured(f"mean, {where}", of_mean, "s"))
    return found


def lift_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> Program:
    """Maps a reducer over lanes and devices as in the train step; its first call compiles it."""
    call, init = _mapped(candidate, leaves, layout)
    state = jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *np.shape(x))), jax.jit(init)())
    return Program(call, layout.put_per_worker(state))


def compile_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> Program:
    """Compiles a reducer as in the train step."""
    call, state = lift_reducer(candidate, leaves, layout)
    return Program(call.lower(_per_worker(leaves, layout), state).compile(), state)


def lower_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> Any:
    """Lowers a reducer as in the train step, for devices that may be described only: it makes no array."""
    call, init = _mapped(candidate, leaves, layout)
    return call.lower(_per_worker(leaves, layout), _per_worker(jax.eval_shape(init), layout))


def _mapped(candidate: Candidate, leaves: Leaves, layout: Layout) -> tuple[Any, Callable[[], Any]]:
    """Returns the function of all workers' gradients and states, and the one that makes one worker's state."""
    reducer = optax.with_extra_args_support(candidate.make(axis_name=AXES))
    arrival_seconds = np.arange(1, layout.num_workers + 1, dtype=np.float32)
    update = functools.partial(reducer.update, arrival_seconds=arrival_seconds)
    over_lanes = jax.vmap(update, out_axes=(None, 0), axis_name=AXES[1], axis_size=layout.lanes)
    init = lambda: reducer.init([jax.numpy.zeros(leaf.shape, leaf.dtype) for leaf in leaves])  # noqa: E731
    return map_devices(over_lanes, layout=layout), init


def _per_worker(tree: Any, layout: Layout) -> Any:
    """Returns the shapes of all workers' arrays on the devices, from those of one worker."""
    lead = (layout.num_devices, layout.lanes)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype, sharding=layout.sharding), tree)


def random_gradients(leaves: Leaves, layout: Layout) -> list[jax.Array]:
    """Returns a different gradient for each worker, on the devices."""
    rng = np.random.default_rng(0)
    shapes = [(layout.num_workers, *leaf.shape) for leaf in leaves]
    return [layout.put_per_worker(rng.standard_normal(shape, np.float32)) for shape in shapes]
