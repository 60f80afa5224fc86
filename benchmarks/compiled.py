"""What reductions and steps need on devices that are not here, compiled for eight H100, sixteen v5e and larger slices.

    python -m benchmarks.compiled --json=out/bench/compiled.json
    python -m benchmarks.compiled --only=reducers --targets=v5e:4x4 --leaves=resnet50 --reducers=mean,adasum

Three parts: every reducer and encoding (``reducers``), with one worker a device; steps of ``benchmarks.gpu``
(``steps``), beside the published measurement, which is of the code of its own commit, and two of several devices;
Adasum and the mean on slices of 64 and 512 devices (``scale``). Nothing is run. Columns are for one device and call:
``kernels`` are operations on a TPU; D is the gradient's bytes; a chain is of collectives that wait for one another.
Where a program has several ways, such as those for ordinary and for extreme gradients, its collectives are those of all
of them, and all else is that of the dearest. A least time is what bytes through memory, products and launches allow;
what is sent over the links comes beside it, without latency; between hosts of GPUs all bytes of a collective go over
their network. The GPU's compiler does not say how large a program is.
Seconds of compiling depend on this machine. The memory of a step is that of its arguments, results and temporaries.

It needs requirements-compilers.txt. Results are written after each row; rows that the same clean commit and the same
versions have written to the file are not compiled again.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks import encodings
from benchmarks.kit import candidates, command, gpu_parts, reducer_times, report, result, step_loop
from benchmarks.kit.candidates import Candidate
from benchmarks.kit.contenders import GIB, Contender
from benchmarks.kit.leaves import FIXED
from benchmarks.kit.result import Measured
from compilers.estimate import Estimate, compile_for
from parallel import Layout
from reducers import registry, targets
from reducers.encodings import ENCODINGS
from reducers.leaves import num_bytes
from reducers.targets import Target
from runs.files import reason
from training import dry_run

PARTS = ("reducers", "steps", "scale")
TARGETS = ("h100:8", "v5e:4x4")  # of the reducers
LEAVES = ("resnet50", "bert_large")
LARGE_TARGETS = ("v5p:4x4x4", "v5p:8x8x8", "h100:8x8")
LARGE_REDUCERS, LARGE_LEAVES = "mean,adasum", ("resnet50",)
STEPS_ON, STEPS_OF = "h100", ("resnet50", "bert", "bert-adasum", "resnet20")  # parts of benchmarks.gpu

# Options of the reducers that cannot do without.
NEEDED = {
    "backup_workers": "num_required=6",
    "centred_clipping": "radius=1.0",
    "deadline": "deadline_seconds=6.5",
    "elastic_averaging": "every_steps=2",
    "local_sgd": "every_steps=2",
    "quorum": "num_required=6",
    "stale": "delay_steps=1",
}

# The columns of a reduction and of a step.
FIRST, LAST = "collectives", "least time, ms"
FIRST_OF_STEP, LAST_OF_STEP = "least time of a step, ms", "temporaries, GiB"


class Row(NamedTuple):
    """A row to compile.

    Attributes:
      name: the row's name.
      first: its first column, which says why the row is missing if it is.
      last: its last column; a row that has it is complete.
      make: log -> the row's values.
    """

    name: str
    first: str
    last: str
    make: Callable[[command.Log], list[Measured]]

    def measure(self, log: command.Log) -> list[Measured]:
        """Compiles the row; one that cannot be traced or compiled has the reason in its first column."""
        try:
            return self.make(log)
        except (TypeError, ValueError) as error:  # a TypeError names an argument that a reducer's update needs
            return [Measured(self.name, [], unit="", missing=reason(error), column=self.first)]

    def is_in(self, kept: Mapping[str, Measured]) -> bool:
        """Returns whether results have the whole row."""
        first = kept.get(f"{self.name}, {self.first}")
        return f"{self.name}, {self.last}" in kept or (first is not None and bool(first.missing))


# ---- reductions --------------------------------------------------------------------------------------------------


def labels() -> list[str]:
    """Returns every reducer, with each of its algorithms, and every encoding, as ``find_reducers`` reads them.

    >>> [label for label in labels() if "local_sgd" in label or "quantised" in label]
    ['local_sgd:every_steps=2', 'quantised:bits=8', 'quantised:bits=4']
    """
    found = [one.label for one in candidates.defaults()]
    found = [f"{label}:{NEEDED[label]}" if label in NEEDED else label for label in found]
    blocks = [dict(case.block) for case in encodings.CASES.values()]
    covered = {block["name"] for block in blocks} | {"full"}  # which encodes nothing
    blocks += [{"name": name} for name in ENCODINGS if name not in covered]
    for block in blocks:
        options = ",".join(f"{key}={value}" for key, value in block.items() if key != "name")
        found.append(f"{block['name']}:{options}" if options else block["name"])
    return found


def find_reducers(text: str) -> list[Candidate]:
    """Returns the reducers that a flag names; an encoding is the mean of gradients that are sent so.

    Args:
      text: reducers or encodings, ``name`` or ``name:key=value,...``, separated by commas.

    Raises:
      ValueError: one line, if one is unknown or an option is not allowed.

    >>> [one.label for one in find_reducers("krum:num_byzantine=1,quantised:bits=8")]
    ['krum:num_byzantine=1', 'mean, quantised:bits=8']
    """
    return [_encoding(label) or candidates.parse(label) for label in registry.split_blocks(text)]


def _encoding(label: str) -> Candidate | None:
    """Returns the mean in an encoding; None if the label is of no encoding."""
    name, _, _ = label.partition(":")
    if name not in ENCODINGS:
        return None
    try:
        block = registry.parse_block(label)
        ENCODINGS.check(block)
    except ValueError as error:
        raise ValueError(f"reducers={label!r}: {error}") from None
    return encodings.candidate(f"{candidates.BASELINE}, {label}", encodings.Case(block))


def reduction(target: Target, leaves_of: str, candidate: Candidate) -> Row:
    """Returns the row of a reducer, with one worker on each device of a target."""
    name = f"{target.name}, {leaves_of}: {candidate.label}"

    def make(log: command.Log) -> list[Measured]:
        del log
        leaves = FIXED[leaves_of]()
        with target.compiling() as devices:
            layout = Layout.of(target.num_devices, devices=devices)
            needs, _ = compile_for(target, reducer_times.lower_reducer(candidate, leaves, layout))
        return _of_reduction(name, needs, num_bytes(leaves))

    return Row(name, FIRST, LAST, make)


def _of_reduction(name: str, needs: Estimate, gradient_bytes: float) -> list[Measured]:
    columns: dict[str, float | None] = {
        FIRST: needs.num_collectives,
        "in a chain": needs.longest_chain,
        "kernels": needs.kernels,
        "bytes through memory / D": needs.memory_bytes / gradient_bytes,
        "program, MB": needs.program_bytes / 1e6 or None,
        "compiled in, s": needs.compile_seconds,
        "over the links, ms": 1e3 * needs.link_seconds,
        LAST: 1e3 * needs.least_seconds,
    }
    return [cell(name, column, value) for column, value in columns.items()]


def cell(name: str, column: str, value: float | None) -> Measured:
    """Returns a cell; None is what a compiler does not say."""
    if value is None:
        return Measured(name, [], unit="", missing="unknown", column=column)
    # The seconds are those of one compilation on a machine that may be busy: less than a factor of 2 says nothing.
    tolerance = 1.0 if column.endswith("compiled in, s") else 0.0
    return Measured(name, [value], unit="", column=column, tolerance=tolerance)


# ---- steps -------------------------------------------------------------------------------------------------------


def steps() -> list[Row]:
    """Returns the rows of the steps that ``benchmarks.gpu`` measures on one device, and of two on several devices."""
    make, parts = gpu_parts.Makers("full", platform="gpu"), gpu_parts.make_parts("full", platform="gpu")
    ours = {one.line: (name, one) for name in reversed(STEPS_OF) for one in parts[name].contenders if not one.packages}
    found = [step(STEPS_ON, part, contender) for part, contender in reversed(ours.values())]
    adasum = make.ours("Adasum of updates", "imagenet_resnet50", "20", 8, 32, *gpu_parts.UPDATES)
    mean = make.ours("mean", "cifar10", "80/8", 16, 16, *gpu_parts.MEAN)
    return [*found, step("h100:8", "resnet50", adasum), step("v5e:2x4", "resnet20", mean)]


def step(target_name: str, part: str, contender: Contender) -> Row:
    """Returns the row of a contender of ``benchmarks.gpu``: a line for ``benchmarks.kit.process_groups``."""
    title = f"{part}: {contender.name}"
    target = targets.find(target_name)
    _, config, turn, *overrides = contender.line.split()
    steps_per_call = int(turn.partition("/")[2] or 1)

    def make(log: command.Log) -> list[Measured]:
        with target.compiling() as devices:
            setup = step_loop.load(config, overrides)
            layout = Layout.of(setup.config.num_workers, num_devices=target.num_devices, devices=devices)
            found = dry_run.compile_programs(
                setup, layout, target, steps_per_call=steps_per_call, say=lambda line: log(f"  {line}")
            )
        programs = [(one.needs, one.calls) for one in found.values()]
        took = measured(title) if target_name == STEPS_ON else {}
        return _of_step(f"{target.name}, {title}", programs, took)

    return Row(f"{target.name}, {title}", FIRST_OF_STEP, LAST_OF_STEP, make)


def _of_step(name: str, programs: Sequence[tuple[Estimate, int]], took: Mapping[str, float]) -> list[Measured]:
    """Returns the row of a step: its programs with their calls, beside what was measured."""
    least = 1e3 * sum(calls * needs.least_seconds for needs, calls in programs)
    in_all = max(needs.total_bytes for needs, _ in programs) / GIB
    columns: dict[str, float] = {FIRST_OF_STEP: least}
    if "step" in took:
        columns |= {"measured, ms": took["step"], "measured / least": took["step"] / least}
    columns |= {
        "kernels of a step": sum(calls * needs.kernels for needs, calls in programs),
        "GB through memory": sum(calls * needs.memory_bytes for needs, calls in programs) / 1e9,
        "reduction, %": sum(1e5 * calls * needs.reduction * needs.least_seconds for needs, calls in programs) / least,
        "all collectives": sum(calls * needs.num_collectives for needs, calls in programs),
        "step compiled in, s": sum(needs.compile_seconds for needs, _ in programs),
        "memory, GiB": in_all,
    }
    if "peak memory" in took:
        columns |= {"peak measured, GiB": took["peak memory"], "peak / memory": took["peak memory"] / in_all}
    columns[LAST_OF_STEP] = max(needs.temporaries for needs, _ in programs) / GIB
    return [cell(name, column, value) for column, value in columns.items()]


def measured(title: str) -> dict[str, float]:
    """Returns the published milliseconds ("step") and GiB ("peak memory") of a step; {} if there are none."""
    path = report.PUBLISHED / "gpu.json"
    rows = result.read(path)[1] if path.exists() else []
    medians = {one.name: one.median for one in rows if not one.missing}
    wanted = {key: f"{title}, {key}" for key in ("step", "peak memory")}
    return {key: medians[name] for key, name in wanted.items() if name in medians}


# ---- the command -------------------------------------------------------------------------------------------------


def benchmark(
    *, repeats: int, log: command.Log, rows: Sequence[Row], kept: Mapping[str, Measured] | None = None
) -> Iterator[Measured]:
    """Yields the values of each row that is not there yet.

    Args:
      repeats: not used: counts are the same each time.
      log: called with lines of progress.
      rows: what to compile.
      kept: title -> result of an earlier run of the same commit.
    """
    del repeats
    missing = [row for row in rows if not row.is_in(kept or {})]
    if len(missing) < len(rows):
        log(f"{len(rows) - len(missing)} of {len(rows)} rows were compiled before, by this commit")
    for number, row in enumerate(missing, start=1):
        log(f"row {number} of {len(missing)}: {row.name}")
        yield from row.measure(log)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose parts, targets, reducers and leaves."""
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default: %(default)s)")
    parser.add_argument(
        "--targets",
        help=f"devices, such as v5e:4x4 (default: {','.join(TARGETS)}; of scale {','.join(LARGE_TARGETS)})",
    )
    parser.add_argument(
        "--reducers",
        help=f"reducers and encodings, name or name:key=value,... (default: all; of scale {LARGE_REDUCERS})",
    )
    parser.add_argument(
        "--leaves", help=f"of {', '.join(FIXED)} (default: {','.join(LEAVES)}; of scale {','.join(LARGE_LEAVES)})"
    )


def read_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of ``benchmark``.

    Raises:
      ValueError: one line, if a value is not allowed, or a compiler is missing.
    """
    only = arguments.only.split(",")
    if unknown := [name for name in only if name not in PARTS]:
        raise ValueError(f"only={unknown[0]!r}: must be of {', '.join(PARTS)}")
    leaves = arguments.leaves.split(",") if arguments.leaves is not None else None
    if unknown := [name for name in leaves or () if name not in FIXED]:
        raise ValueError(f"leaves={unknown[0]!r}: must be of {', '.join(FIXED)}")
    asked = None if arguments.reducers is None else find_reducers(arguments.reducers)
    names = arguments.targets.split(",") if arguments.targets is not None else None
    rows: list[Row] = []
    if "reducers" in only:
        rows += _reductions(names or TARGETS, leaves or LEAVES, asked or find_reducers(",".join(labels())))
    if "steps" in only:
        find_target(STEPS_ON, key="only='steps': ")
        rows += steps()
    if "scale" in only:
        rows += _reductions(names or LARGE_TARGETS, leaves or LARGE_LEAVES, asked or find_reducers(LARGE_REDUCERS))
    return {"rows": list({row.name: row for row in rows}.values())}  # two parts may have the same row


def _reductions(names: Sequence[str], leaves: Sequence[str], chosen: Sequence[Candidate]) -> list[Row]:
    found = [find_target(name) for name in names]
    return [reduction(target, leaves_of, one) for target in found for leaves_of in leaves for one in chosen]


def find_target(name: str, *, key: str = "targets=") -> Target:
    """Returns a target whose compiler answers.

    Raises:
      ValueError: one line that begins with ``key``, if there is no such target, or its compiler is missing.
    """
    try:
        target = targets.find(name)
        with target.compiling():
            return target
    except ValueError as error:
        raise ValueError(f"{key}{error}") from None


# The command of rows that are compiled; ``benchmarks.nodes`` has others.
compile_rows = functools.partial(
    command.run,
    benchmark,
    repeats=1,
    packages=("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin"),
    start="where it stopped",
)
main = functools.partial(compile_rows, name="compiled", doc=__doc__, add_flags=add_flags, read_flags=read_flags)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
