"""Times compiled reducers in turns with the mean, in one process."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from benchmarks.kit import hlo, taking_turns
from benchmarks.kit.candidates import BASELINE, Candidate, parse
from benchmarks.kit.command import Log
from benchmarks.kit.leaves import Leaves
from parallel import AXES, Layout, map_devices
from reducers.traffic import Traffic

# Copies must be far larger than any cache, and take far longer than it takes to launch them.
_COPY_BYTES = 4 * 10**9  # of one accelerator
_COPY_BYTES_ON_HOST = 2**29  # of all virtual CPU devices together
_COPY_SHARE = 8  # one in this many free bytes, at most
_COPIES = 10


@dataclasses.dataclass
class Row:
    """The measurements of one reducer on one layout of leaves.

    Attributes:
      leaves: the name of the layout.
      num_floats: the number of floats of one worker's gradient.
      num_leaves: the number of its leaves.
      reducer: the reducer as written on the command line.
      least_bytes: the bytes that any reducer must read or write on all devices together: each device reads its workers'
        gradients and writes one result.
      traffic: what one device sends, read in the compiled program; None without a program.
      seconds: the seconds of each call.
      baseline_seconds: the seconds of the mean's call that follows each call.
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
    rows: list[Row],
    log: Log = lambda line: None,
) -> None:
    """Measures reducers on one set of leaves.

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
      rows: a list to which a row is added for each candidate before the first round. The rows are filled round by
        round, so that they hold all finished measurements after Ctrl-C.
      log: called with lines of progress.
    """
    size = sum(leaf.size for leaf in leaves)
    least = 4 * size * (layout.num_workers + layout.num_devices)
    added = [Row(name, size, len(leaves), candidate.label, least) for candidate in candidates]
    rows += added
    try:
        _check_memory(least, layout)
        gradients = random_gradients(leaves, layout)
        mean = compile_reducer(parse(BASELINE), leaves, layout)
    except ValueError as error:
        for row in added:
            row.refused = str(error)
        return
    programs: list[tuple[Row, Program]] = []
    for row, candidate in zip(added, candidates, strict=True):
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
    """Compiles a reducer as in the train step; raises ValueError if it does not fit into memory."""
    call, state = lift_reducer(candidate, leaves, layout)
    lead = (layout.num_devices, layout.lanes)
    shapes = [jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype) for leaf in leaves]
    compiled = call.lower(shapes, state).compile()
    memory = compiled.memory_analysis()
    if memory is not None:
        _check_memory(layout.num_devices * (memory.output_size_in_bytes + memory.temp_size_in_bytes), layout)
    return Program(compiled, state, hlo.traffic(compiled.as_text()))


def random_gradients(leaves: Leaves, layout: Layout) -> list[jax.Array]:
    """Returns a different gradient for each worker, on the devices."""
    rng = np.random.default_rng(0)
    draw = lambda leaf: rng.standard_normal((layout.num_workers, *leaf.shape), np.float32)  # noqa: E731
    return [layout.put_per_worker(draw(leaf)) for leaf in leaves]


def seconds(program: Program, gradients: list[jax.Array]) -> float:
    """Returns the seconds of a call, whose results are waited for."""
    return taking_turns.timed(lambda: jax.block_until_ready(program.call(gradients, program.state)))


def copy_bytes(free: int | None, *, platform: str, num_devices: int) -> int:
    """Returns the bytes of the array that each device copies to measure its bandwidth.

    Args:
      free: the free memory of all devices together, or None if it is not known.
      platform: the devices' platform; those of "cpu" share the host's memory.
      num_devices: D.

    >>> copy_bytes(70 * 10**9, platform="gpu", num_devices=1), copy_bytes(None, platform="cpu", num_devices=8)
    (4000000000, 67108864)
    """
    wanted = _COPY_BYTES_ON_HOST // num_devices if platform == "cpu" else _COPY_BYTES
    return wanted if free is None else min(wanted, max(4, free // num_devices // _COPY_SHARE))


def copy_bytes_per_second(layout: Layout) -> float:
    """Measures the memory bandwidth of all devices together, as bytes read and written by a negation in place."""
    platform = layout.devices[0].platform
    num_floats = copy_bytes(free_bytes(layout), platform=platform, num_devices=layout.num_devices) // 4
    ones = map_devices(lambda one: jax.numpy.broadcast_to(one, num_floats), layout=layout)
    negate = map_devices(lambda x: -x, layout=layout, donate_argnums=(0,))
    x = jax.block_until_ready(negate(ones(layout.put_shared(np.float32(1)))))
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
    """Returns the free memory of all devices together, or None if it is not known."""
    statistics = [device.memory_stats() for device in layout.devices]
    if all(s and "bytes_limit" in s for s in statistics):
        return sum(s["bytes_limit"] - s["bytes_in_use"] for s in statistics)
    if layout.devices[0].platform != "cpu":
        return None
    limits = [_meminfo(), _cgroup()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    """Returns the memory that is available without swapping, on Linux."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup() -> int | None:
    """Returns the memory that is left to a container."""
    folder = pathlib.Path("/sys/fs/cgroup")
    try:
        limit, used = (folder.joinpath(f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)
