"""Times of compiled reducers over those of the mean, taken in turns in one process."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from benchmarks import hlo
from benchmarks.candidates import BASELINE, Candidate, parse
from benchmarks.leaves import Leaves
from parallel import AXES, Layout, map_devices
from reducers.traffic import Traffic

Tell = Callable[[str], Any]

_COPY_FLOATS = 1 << 24  # of each device: far more than its caches hold
_COPIES = 10


@dataclasses.dataclass
class Row:
    """What was measured of one reducer on one layout of leaves.

    Attributes:
      leaves: name of the layout.
      num_floats: of one worker's gradient.
      num_leaves: it has.
      reducer: as written on the command line.
      least_bytes: that must be touched whatever the reducer: each device reads its workers' gradients and writes one
        result; all devices together.
      traffic: what one device sends, read in the compiled program; None where there is none.
      seconds: of each call.
      baseline_seconds: of the call of the mean right after it.
      refused: why there is no measurement.
    """

    leaves: str
    num_floats: int
    num_leaves: int
    reducer: str
    least_bytes: int
    traffic: Traffic | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    baseline_seconds: list[float] = dataclasses.field(default_factory=list)
    refused: str = ""

    @property
    def ratios(self) -> np.ndarray:
        """Time over that of the mean, pair by pair."""
        return np.array(self.seconds[: len(self.baseline_seconds)]) / np.array(self.baseline_seconds)


class Program(NamedTuple):
    """A compiled reducer, with the state that it is called with."""

    call: Callable[[Any, Any], Any]
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
    rows: list[Row],
    tell: Tell = lambda line: None,
) -> None:
    """Measures reducers on one set of leaves.

    Rounds: a, mean, b, mean, ... so that what slows the machine down for a while slows both. The first call of each,
    which warms up, is not counted. Each call is waited for.

    Args:
      name: of the leaves.
      leaves: of one worker's gradient.
      candidates: what to measure.
      layout: W workers as D devices x L lanes; a reducer is called as in the train step, one result a device.
      repeats: number of rounds.
      max_seconds: of the rounds of one reducer; what its first call shows to need more is refused.
      rows: one is added for each candidate before the first round, and filled round by round, so that what was
        measured is there when Ctrl-C comes.
      tell: called with lines of progress.
    """
    size = sum(leaf.size for leaf in leaves)
    least = 4 * size * (layout.num_workers + layout.num_devices)
    added = [Row(name, size, len(leaves), candidate.label, least) for candidate in candidates]
    rows += added
    try:
        _check_memory(least, layout)
        gradients = _gradients(leaves, layout)
        mean = compile_reducer(parse(BASELINE), leaves, layout)
    except ValueError as error:
        for row in added:
            row.refused = str(error)
        return
    programs: list[tuple[Row, Program]] = []
    for row, candidate in zip(added, candidates, strict=True):
        tell(f"{name}, {size:,} floats: compiling {candidate.label}")
        try:
            program = compile_reducer(candidate, leaves, layout)
        except (TypeError, ValueError) as error:  # a TypeError names what its update needs and is not given here
            row.refused = str(error).partition("\n")[0]
            continue
        row.traffic = program.traffic
        programs.append((row, program))
    _seconds(mean, gradients)
    measured = []
    for row, program in programs:
        first = _seconds(program, gradients)
        if first * repeats > max_seconds:
            row.refused = f"{repeats} rounds of {first:.1f} s each would take more than max_seconds={max_seconds:g}"
        else:
            measured.append((row, program))
    for number in range(repeats):
        tell(f"{name}, {size:,} floats: round {number + 1} of {repeats}")
        for row, program in measured:
            row.seconds.append(_seconds(program, gradients))
            row.baseline_seconds.append(_seconds(mean, gradients))


def lift_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> tuple[Any, Any]:
    """Returns a reducer as the train step has it, not compiled yet, and the state that it is called with."""
    reducer = optax.with_extra_args_support(candidate.make(axis_name=AXES))
    arrival_seconds = np.arange(1, layout.num_workers + 1, dtype=np.float32)
    update = functools.partial(reducer.update, arrival_seconds=arrival_seconds)
    over_lanes = jax.vmap(update, out_axes=(None, 0), axis_name=AXES[1], axis_size=layout.lanes)
    state = jax.tree.map(
        lambda x: np.broadcast_to(x, (layout.num_workers, *np.shape(x))),
        jax.jit(lambda: reducer.init([jax.numpy.zeros(leaf.shape, leaf.dtype) for leaf in leaves]))(),
    )
    return map_devices(lambda g, s: over_lanes(g, s), layout=layout), layout.put_per_worker(state)


def compile_reducer(candidate: Candidate, leaves: Leaves, layout: Layout) -> Program:
    """Compiles a reducer as the train step has it; refuses what does not fit into memory."""
    call, state = lift_reducer(candidate, leaves, layout)
    lead = (layout.num_devices, layout.lanes)
    shapes = [jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype) for leaf in leaves]
    compiled = call.lower(shapes, state).compile()
    memory = compiled.memory_analysis()
    if memory is not None:
        _check_memory(layout.num_devices * (memory.output_size_in_bytes + memory.temp_size_in_bytes), layout)
    return Program(compiled, state, hlo.traffic(compiled.as_text()))


def _gradients(leaves: Leaves, layout: Layout) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    draw = lambda leaf: rng.standard_normal((layout.num_workers, *leaf.shape), np.float32)  # noqa: E731
    return [layout.put_per_worker(draw(leaf)) for leaf in leaves]


def _seconds(program: Program, gradients: list[jax.Array]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program.call(gradients, program.state))
    return time.perf_counter() - start


def copy_bytes_per_second(layout: Layout) -> float:
    """Measures the memory bandwidth of all devices at once: bytes read and bytes written, in place."""
    negate = map_devices(lambda x: -x, layout=layout, donate_argnums=(0,))
    x = jax.block_until_ready(negate(layout.put_shared(np.ones(_COPY_FLOATS, np.float32))))
    seconds = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        x = jax.block_until_ready(negate(x))
        seconds.append(time.perf_counter() - start)
    return 2 * x.nbytes / float(np.median(seconds))


def _check_memory(needed: int, layout: Layout) -> None:
    free = free_bytes(layout)
    if free is not None and needed > free:
        raise ValueError(f"needs {needed / 1e9:.1f} GB of memory, of which {free / 1e9:.1f} GB are free")


def free_bytes(layout: Layout) -> int | None:
    """Returns the memory that is free to the devices together, or None where nothing says."""
    statistics = [device.memory_stats() for device in layout.devices]
    if all(s and "bytes_limit" in s for s in statistics):
        return sum(s["bytes_limit"] - s["bytes_in_use"] for s in statistics)
    if layout.devices[0].platform != "cpu":
        return None
    limits = [_meminfo(), _cgroup()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    """What Linux can give without swapping."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup() -> int | None:
    """What a container has left."""
    folder = pathlib.Path("/sys/fs/cgroup")
    try:
        limit, used = (folder.joinpath(f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)
