"""Encodings: the bytes that workers send, the time that encoding takes, and the links on which it pays, over the mean.

    python -m benchmarks.encodings

Bytes are those of ResNet-50's leaves and 8 workers, counted in the traced program, beside the encoding's own formula.
Times are of a reduction of 10 million floats by 8 devices of one process, in turns with the mean's. These share the
cores of the machine, where each of 8 machines would have its own. An encoding pays on links below the speed at which a
worker sends what it saves in the time that it takes.
"""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np

import reducers
from benchmarks.kit import command, leaves, reducer_times, step_loop, taking_turns
from benchmarks.kit.candidates import BASELINE, Candidate, parse
from benchmarks.kit.command import Found, Log
from benchmarks.kit.leaves import Leaves
from benchmarks.kit.result import Measured, Target
from parallel import Layout, configure_cpu_devices, keep_freed_memory
from reducers.encodings import ENCODINGS, Encoding, named_leaves

WORKERS, FLOATS = 8, 10_000_000


class Case(NamedTuple):
    """An encoding to measure, with the bounds for its bytes and its time over those of the mean."""

    block: Mapping[str, Any]
    most_bytes: float | None = None
    most_time: float | None = None


CASES: dict[str, Case] = {
    "quantised to 8 bits": Case({"name": "quantised", "bits": 8}, 0.256, 4.0),
    "quantised to 4 bits": Case({"name": "quantised", "bits": 4}, 0.13),
    "sign": Case({"name": "sign"}, 0.035),
    "top_k of 1 %": Case({"name": "top_k", "ratio": 0.01}, 0.01 * WORKERS),
    "random_k of 1 %": Case({"name": "random_k", "ratio": 0.01}),
    "low_rank of rank 4": Case({"name": "low_rank", "rank": 4}, None, 1.5),
    "half": Case({"name": "half"}),
}


def benchmark(
    *,
    repeats: int,
    log: Log,
    cases: Mapping[str, Case] = CASES,
    leaves_of_bytes: str = "resnet50",
    leaves_of_times: str = "resnet50_like",
    num_floats: int = FLOATS,
) -> Found:
    """Counts bytes, then measures reductions in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      cases: name -> what is measured.
      leaves_of_bytes: one of ``leaves.FIXED``, or of ``leaves.SIZED``.
      leaves_of_times: likewise.
      num_floats: the number of floats of a gradient, of leaves without a size of their own.
    """
    keep_freed_memory()
    configure_cpu_devices(WORKERS, num_devices=WORKERS)
    layout = Layout.of(WORKERS, num_devices=WORKERS)
    encodings = {name: ENCODINGS.build(case.block) for name, case in cases.items()}
    found = []
    ((_, shapes),) = leaves.sets([leaves_of_bytes], sizes=[num_floats])
    where = f"{leaves_of_bytes}, {WORKERS} workers"
    of_mean = parse(BASELINE).traffic(shapes, num_workers=WORKERS).bytes_per_worker
    for name, encoding in encodings.items():
        sent = candidate(name, encoding).traffic(shapes, num_workers=WORKERS).bytes_per_worker
        most = cases[name].most_bytes
        target = None if most is None else Target("<=", most)
        found.append(Measured(f"{name}, bytes over mean, {where}", [sent / of_mean], target=target))
        ratio = formula(encoding, shapes, num_workers=WORKERS) / of_mean
        found.append(Measured(f"{name}, bytes over mean by its formula, {where}", [ratio]))

    ((_, shapes),) = leaves.sets([leaves_of_times], sizes=[num_floats])
    where = f"{WORKERS} devices, {num_floats / 1e6:g} M floats"
    gradients = reducer_times.random_gradients(shapes, layout)
    programs = {BASELINE: reducer_times.compile_reducer(parse(BASELINE), shapes, layout)}
    for name, encoding in encodings.items():
        log(f"{name}: compiling for {where}")
        programs[name] = reducer_times.compile_reducer(candidate(name, encoding), shapes, layout)
    turns = {
        name: lambda program=program: reducer_times.seconds(program, gradients) for name, program in programs.items()
    }
    seconds = taking_turns.in_turns(turns, repeats=repeats, log=log)
    for name, case in cases.items():
        target = None if case.most_time is None else Target("<=", case.most_time)
        found.append(
            Measured(f"{name}, time over mean, {where}", taking_turns.ratios(seconds, name, BASELINE), target=target)
        )
    found.append(Measured(f"mean, {where}", seconds[BASELINE], unit="s"))
    for name in cases:
        saved = programs[BASELINE].traffic.bytes_per_worker - programs[name].traffic.bytes_per_worker
        taken = float(np.median(seconds[name]) - np.median(seconds[BASELINE]))
        found.append(link(f"{name} pays on links below, {where}", saved=saved, taken=taken))
    return Found(found, step_loop.devices(layout.num_devices))


def candidate(name: str, encoding: Encoding) -> Candidate:
    """Returns the mean of encoded gradients as a candidate."""
    return Candidate(name, lambda axis_name: reducers.encoded(reducers.mean(axis_name), encoding, axis_name=axis_name))


def formula(encoding: Encoding, shapes: Leaves, *, num_workers: int) -> float:
    """Returns the bytes that a worker sends, as the encoding counts them: scales, places and small leaves included."""
    named = named_leaves(shapes)
    state = jax.eval_shape(encoding.init, named).state
    return float(encoding.cost(named, state, num_workers).sent)


def link(name: str, *, saved: float, taken: float) -> Measured:
    """Returns the speed of a link on which saving some bytes takes as long as is saved.

    Args:
      name: of the quantity.
      saved: bytes of one worker.
      taken: seconds.

    >>> link("half", saved=2e6, taken=0.1).values
    [160.0]
    >>> link("half", saved=2e6, taken=-0.1).missing
    'it is faster than the mean, and pays on all links'
    """
    if taken <= 0:
        return Measured(name, [], unit="Mbit/s", missing="it is faster than the mean, and pays on all links")
    return Measured(name, [8e-6 * saved / taken], unit="Mbit/s")


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="encodings", doc=__doc__, argv=sys.argv[1:], repeats=15)
