"""Times compiled reducers in turns with the mean, in one process."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from benchmarks.kit import taking_turns
from benchmarks.kit.candidates import BASELINE, Candidate, parse
from benchmarks.kit.command import Log
from benchmarks.kit.leaves import Leaves
from parallel import AXES, Layout, map_devices
from reducers.traffic import Traffic


@dataclasses.dataclass
class Row:
    """The measurements of one reducer on one layout of leaves.

    Attributes:
      leaves: the name of the layout.
      num_floats: the number of floats of one worker's gradient.
      num_leaves: the number of its leaves.
      reducer: the reducer as written on the command line.
      traffic: what a worker sends where each has a device of its own; None without a program.
      seconds: the seconds of each call.
      baseline_seconds: the seconds of the mean's call that follows each call.
      refused: why there is no measurement.
    """

    leaves: str
    num_floats: int
    num_leaves: int
    reducer: str
    traffic: Traffic | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    baseline_seconds: list[float] = dataclasses.field(default_factory=list)
    refused: str = ""

    @property
    def ratios(self) -> np.ndarray:
        """The reducer's time over the mean's, call by call."""
        return np.array(self.seconds[: len(self.baseline_seconds)]) / np.array(self.baseline_seconds)


class Program(NamedTuple):
    """A compiled reducer and its state."""

    call: jax.stages.Compiled
    state: Any
    traffic: Traffic


def measure(
    name: str,
    leaves: Leaves,
    candidates: Sequence[Candidate],
    *,
    layout: Layout,
    repeats: int,
    max_seconds: float,
    log: Log = lambda line: None,
) -> list[Row]:
    """Measures reducers on one set of leaves, and returns a row for each.

    A round calls a, mean, b, mean, ..., so that anything that slows the machine down for a while slows both. The first
    call of each warms up and is not counted. Each call is waited for.

    Args:
      name: the name of the leaves.
      leaves: the leaves of one worker's gradient.
      candidates: the reducers to measure.
      layout: W workers as D devices x L lanes; a reducer is called as in the train step, with one result per device.
      repeats: the number of rounds.
      max_seconds: the limit for all rounds of one reducer; a reducer whose first call shows that it needs more is
        refused.
      log: called with lines of progress.
    """
    size = sum(leaf.size for leaf in leaves)
    rows = [Row(name, size, len(leaves), candidate.label) for candidate in candidates]
    gradients = random_gradients(leaves, layout)
    mean = compile_reducer(parse(BASELINE), leaves, layout)
    programs: list[tuple[Row, Program]] = []
    for row, candidate in zip(rows, candidates, strict=True):
        log(f"{name}, {size:,} floats: compiling {candidate.label}")
        try:
            program = compile_reducer(candidate, leaves, layout)
        except (TypeError, ValueError) as error:  # a TypeError names an argument that its update needs
            row.refused = str(error).partition("\n")[0]
            continue
        row.traffic = program.traffic
        programs.append((row, program))
    seconds(mean, gradients)
    measured = []
    for row, program in programs:
        first = seconds(program, gradients)
        if first * repeats > max_seconds:
            row.refused = f"{repeats} rounds of {first:.1f} s each would take more than max_seconds={max_seconds:g}"
        else:
            measured.append((row, program))
    for number in range(repeats):
        log(f"{name}, {size:,} floats: round {number + 1} of {repeats}")
        for row, program in measured:
            row.seconds.append(seconds(program, gradients))
            row.baseline_seconds.append(seconds(mean, gradients))
    return rows


def lift_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> tuple[Any, Any]:
    """Returns a reducer as in the train step, not compiled yet, and its state."""
    reducer = optax.with_extra_args_support(candidate.make(axis_name=AXES))
    arrival_seconds = np.arange(1, layout.num_workers + 1, dtype=np.float32)
    update = functools.partial(reducer.update, arrival_seconds=arrival_seconds)
    over_lanes = jax.vmap(update, out_axes=(None, 0), axis_name=AXES[1], axis_size=layout.lanes)
    state = jax.tree.map(
        lambda x: np.broadcast_to(x, (layout.num_workers, *np.shape(x))),
        jax.jit(lambda: reducer.init([jax.numpy.zeros(leaf.shape, leaf.dtype) for leaf in leaves]))(),
    )
    return map_devices(over_lanes, layout=layout), layout.put_per_worker(state)


def compile_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> Program:
    """Compiles a reducer as in the train step."""
    call, state = lift_reducer(candidate, leaves, layout)
    lead = (layout.num_devices, layout.lanes)
    shapes = [jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype) for leaf in leaves]
    compiled = call.lower(shapes, state).compile()
    return Program(compiled, state, candidate.traffic(leaves, num_workers=layout.num_workers))


def random_gradients(leaves: Leaves, layout: Layout) -> list[jax.Array]:
    """Returns a different gradient for each worker, on the devices."""
    rng = np.random.default_rng(0)
    draw = lambda leaf: rng.standard_normal((layout.num_workers, *leaf.shape), np.float32)  # noqa: E731
    return [layout.put_per_worker(draw(leaf)) for leaf in leaves]


def seconds(program: Program, gradients: list[jax.Array]) -> float:
    """Returns the seconds of a call, whose results are waited for."""
    return taking_turns.timed(lambda: jax.block_until_ready(program.call(gradients, program.state)))
