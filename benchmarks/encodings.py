"""Encodings: the bytes that workers send, the time that encoding takes, and the links on which it pays, over the mean.

    python -m benchmarks.encodings

Bytes are counted in the traced program, for ResNet-50's leaves and 8 workers. Times are for a reduction of 10 million
floats by 8 devices of one process, in turns with the mean. These devices share the cores of the machine; 8 machines
would each have their own. An encoding pays on links whose speed is below the bytes that it saves divided by the seconds
that it takes.
"""

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import reducers
from benchmarks.kit import command, leaves
from benchmarks.kit.candidates import BASELINE, Candidate, parse
from benchmarks.kit.command import Log
from benchmarks.kit.reducer_times import make_layout, measure
from benchmarks.kit.result import Measured, Target
from reducers.encodings import ENCODINGS
from reducers.leaves import num_bytes

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
) -> Iterator[Measured]:
    """Counts bytes, then measures reductions in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      cases: name -> the encoding to measure.
      leaves_of_bytes: the leaves for counting bytes: a name in ``leaves.FIXED`` or ``leaves.SIZED``.
      leaves_of_times: the same for times.
      num_floats: the number of floats of a gradient, for leaves in ``leaves.SIZED``.
    """
    layout = make_layout(WORKERS)
    ((_, shapes),) = leaves.sets([leaves_of_bytes], sizes=[num_floats])
    of_mean = parse(BASELINE).traffic(shapes, num_workers=WORKERS).bytes_per_worker
    for name, case in cases.items():
        sent = candidate(name, case).traffic(shapes, num_workers=WORKERS).bytes_per_worker
        target = None if case.most_bytes is None else Target("<=", case.most_bytes)
        over = f"{name}, bytes over mean, {leaves_of_bytes}, {WORKERS} workers"
        yield Measured(over, [sent / of_mean], target=target)

    ((what, shapes),) = leaves.sets([leaves_of_times], sizes=[num_floats])
    timed = [candidate(f"{name}, time", case) for name, case in cases.items()]
    rows = measure(what, shapes, timed, layout=layout, repeats=repeats, log=log)
    yield from (one for one in rows if " sends, " not in one.name)
    median = {one.name: one.median for one in rows if not one.missing}
    where = f"{WORKERS} devices, {what}"
    size = num_bytes(shapes)
    all_reduced = 2 * (WORKERS - 1) / WORKERS  # the mean sends so many gradients
    for name in cases:
        saved = size * (all_reduced - median[f"{name}, time sends, {where}"])
        taken = median[f"mean, {where}"] * (median[f"{name}, time over mean, {where}"] - 1)
        yield link(f"{name} pays on links below, {where}", saved=saved, taken=taken)


def candidate(label: str, case: Case) -> Candidate:
    """Returns a candidate: the mean of gradients in the encoding of a case."""
    encoding = ENCODINGS.build(case.block)
    target = None if case.most_time is None else Target("<=", case.most_time)

    def make(axis_name):
        return reducers.encoded(reducers.mean(axis_name), encoding, axis_name=axis_name)

    return Candidate(label, make, target)


def link(name: str, *, saved: float, taken: float) -> Measured:
    """Returns the speed of the link on which an encoding takes as much time as it saves.

    Args:
      name: the name of the quantity.
      saved: the bytes that one worker saves.
      taken: the seconds that the encoding takes.

    >>> link("half", saved=2e6, taken=0.1).values
    [160.0]
    >>> link("half", saved=2e6, taken=-0.1).missing
    'it is faster than the mean, and pays on all links'
    """
    if taken <= 0:
        return Measured(name, [], unit="Mbit/s", missing="it is faster than the mean, and pays on all links")
    return Measured(name, [8e-6 * saved / taken], unit="Mbit/s")


main = functools.partial(command.run, benchmark, name="encodings", doc=__doc__, repeats=15)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
