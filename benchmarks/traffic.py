"""Counts what a worker sends with each reducer and encoding, and in how many collectives, by the number of workers.

    python -m benchmarks.traffic

Counted in traced programs by ``reducers.traffic``, one worker a device, for the leaves of ResNet-50; nothing is run.
Rows name a formula of the bytes over D, those of the gradient, for n workers: L is the number of leaves, and k how many
devices Adasum combines at once. Temporaries are those of the program of 8 devices of one process, over D, for the 8
leaves of LeNet-5: XLA takes minutes for the 161 of ResNet-50 with one of the encodings.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()


from benchmarks import encodings
from benchmarks.kit import command, reducer_times, step_loop
from benchmarks.kit.candidates import Candidate, parse
from benchmarks.kit.command import Found, Log
from benchmarks.kit.leaves import FIXED, Leaves, lenet5
from benchmarks.kit.result import Measured
from parallel import Layout, configure_cpu_devices
from reducers.encodings import ENCODINGS

NUM_WORKERS = (8, 64, 512, 4096)
COMPILED = 8  # devices of one process
_FLOAT = 4  # bytes


class Case(NamedTuple):
    """A reducer whose bytes are counted, and the formula that they follow.

    Attributes:
      candidate: the reducer.
      formula: of the bytes over those of the gradient, as text.
      sent: (n, leaves) -> the bytes that a worker sends.
    """

    candidate: Candidate
    formula: str
    sent: Callable[[int, Leaves], float]


def reduced(n: int, leaves: Leaves) -> float:
    """Returns the bytes of an all-reduce: 2 (n - 1) / n of the gradient."""
    return 2 * (n - 1) / n * _FLOAT * sum(leaf.size for leaf in leaves)


def gathered(n: int, leaves: Leaves) -> float:
    """Returns the bytes of an all-gather of whole gradients."""
    return (n - 1) * _FLOAT * sum(leaf.size for leaf in leaves)


def voted(n: int, leaves: Leaves) -> float:
    """Returns the bytes of an all-reduce of votes: a byte each where it can hold n, else an integer."""
    return reduced(n, leaves) * (1 if n < 128 else _FLOAT) / _FLOAT


def multiplied(n: int, leaves: Leaves, *, num_groups: int | None = None) -> float:
    """Returns the bytes of slices there and back, and of the dot products of all pairs.

    Dot products are n (n + 1) / 2 numbers of each group, summed twice, with the largest scales, where a norm leaves the
    range of float32.
    """
    groups = [leaf.size for leaf in leaves] if num_groups is None else [sum(leaf.size for leaf in leaves)]
    slices = sum(-(-size // n) for size in groups)
    return 2 * (n - 1) * _FLOAT * slices + len(groups) * _products(n)


def folded(n: int, leaves: Leaves, *, at_once: int = 16) -> float:
    """Returns the bytes of Adasum, layer by layer, of n = k_1 k_2 ... devices, at most ``at_once`` in a factor."""
    factors, left = [], n
    while left > 1:
        factors.append(min(left, at_once))
        left //= factors[-1]
    sent = 0.0
    for leaf in leaves:
        width = leaf.size
        is_small = width < max(64, 8 * factors[0])  # gathered whole, level by level
        for k in factors:
            if is_small:
                sent += (k - 1) * _FLOAT * width
            else:
                width = -(-width // k)
                sent += (k - 1) * _FLOAT * width + _products(k)
        sent += 0 if is_small else (n - 1) * _FLOAT * width
    return sent


def _products(n: int) -> float:
    return 2 * _FLOAT * (n * n - 1) + 2 * _FLOAT * (n - 1)


def of_model(n: int, leaves: Leaves) -> float:
    """Returns the bytes of a rule on the dot products of whole gradients."""
    return multiplied(n, leaves, num_groups=1)


def cases() -> dict[str, Case]:
    """Returns what is counted, by name."""
    model, layer = "2 (n - 1) / n + 8 n^2 / D", "2 (n - 1) / n + 8 n^2 L / D"
    formulas: dict[str, tuple[str, Callable[[int, Leaves], float]]] = {
        "mean": ("2 (n - 1) / n", reduced),
        "sum": ("2 (n - 1) / n", reduced),
        "sign_majority": ("(n - 1) / 2 n, of n < 128", voted),
        "coordinate_median": ("2 (n - 1) / n", reduced),
        "trimmed_mean:num_trimmed=1": ("2 (n - 1) / n", reduced),
        "krum:num_byzantine=1": (model, of_model),
        "multi_krum:num_byzantine=1,num_selected=4": (model, of_model),
        "geometric_median": (model, of_model),
        "mgda": (model, of_model),
        "upgrad": (model, of_model),
        "pcgrad": (model, of_model),
        "adacons": (model, of_model),
        "agreement_scaled_mean": (model, of_model),
        "radial_directional": (layer, multiplied),
        "adasum": ("2 (n - 1) / n + 8 k^2 L / D a level, k = 16", folded),
        "adasum:algorithm=halving": ("the same, k = 2", lambda n, leaves: folded(n, leaves, at_once=2)),
        "adasum:telemetry=on": (layer, lambda n, leaves: folded(n, leaves, at_once=n)),
        "adasum:algorithm=gather": ("n - 1", gathered),
        "backup_workers:num_required=6": ("2 (n - 1) / n", reduced),
    }
    found = {label: Case(parse(label), *formula) for label, formula in formulas.items()}
    for name, case in encodings.CASES.items():
        encoding = ENCODINGS.build(case.block)
        sent = lambda n, leaves, encoding=encoding: encodings.formula(encoding, leaves, num_workers=n)  # noqa: E731
        found[f"mean, {name}"] = Case(encodings.candidate(name, encoding), "its own", sent)
    return found


def benchmark(
    *,
    repeats: int,
    log: Log,
    names: Sequence[str] = (),
    leaves_of: str = "resnet50",
    num_workers: Sequence[int] = NUM_WORKERS,
) -> Found:
    """Counts bytes and collectives of traced programs, and temporaries of compiled ones.

    Args:
      repeats: not used: counts are the same each time.
      log: called with lines of progress.
      names: some of ``cases``; all by default.
      leaves_of: one of ``leaves.FIXED``.
      num_workers: ascending.
    """
    del repeats
    configure_cpu_devices(COMPILED, num_devices=COMPILED)
    layout, leaves, compiled = Layout.of(COMPILED, num_devices=COMPILED), FIXED[leaves_of](), lenet5()
    size, size_compiled = (_FLOAT * sum(leaf.size for leaf in some) for some in (leaves, compiled))
    found = []
    for name, case in cases().items():
        if names and name not in names:
            continue
        row = f"{name}: {case.formula}"
        moved = {}
        for n in num_workers:
            log(f"{name}: tracing it for {n} workers")
            moved[n] = case.candidate.traffic(leaves, num_workers=n)
            found.append(Measured(row, [moved[n].bytes_per_worker / size], column=f"bytes / D, n = {n:,}"))
        for n in (num_workers[0], num_workers[-1]):
            column = f"collectives, n = {n:,}"
            found.append(Measured(row, [sum(moved[n].collectives.values())], unit="", column=column))
        log(f"{name}: compiling it for {COMPILED} devices")
        memory = reducer_times.compile_reducer(case.candidate, compiled, layout).call.memory_analysis()
        if memory is not None:  # CPUs say it
            temporaries = memory.temp_size_in_bytes / size_compiled
            found.append(Measured(row, [temporaries], column=f"temporaries / D, {COMPILED} devices"))
    return Found(found, step_loop.devices(COMPILED))


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="traffic", doc=__doc__, argv=sys.argv[1:], repeats=1)
