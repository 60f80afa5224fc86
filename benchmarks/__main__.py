"""Runs the benchmarks whose results are published, one after another: ``make bench``.

    python -m benchmarks run                    # all of a CPU, into out/bench; then prints changes since published
    python -m benchmarks run step bare          # some of them
    python -m benchmarks run traffic            # counts, which are the same on every machine
    python -m benchmarks run compiled           # for TPUs and GPUs that are not here: needs their compilers
    python -m benchmarks publish                # publishes the results in out/bench

Each benchmark is a process and a command of its own: python -m benchmarks.NAME. python -m benchmarks.reducers measures
every reducer at any size, and python -m benchmarks.gpu a GPU (``make bench-gpu``).
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import drawing, report, result
from launch.children import Children

ON_CPU = ("step", "bare", "reducers", "encodings", "processes")
FLAGS = {"reducers": ["--published"]}  # extra flags of a benchmark that measures more by default
BENCHMARKS = (*ON_CPU, "traffic", "compiled", "nodes", "gpu")
MEASURED = Path("out/bench")


def run(names: Sequence[str]) -> int:
    """Runs benchmarks in order, and prints which results changed.

    Returns:
      0, 1 if a benchmark failed, or 128 + n after signal n.
    """
    MEASURED.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, name in enumerate(names, start=1):
        print(f"[{number} of {len(names)}] {name}: {report.title(name)}", flush=True)
        flags = [*FLAGS.get(name, []), f"--json={MEASURED.absolute() / name}.json"]
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        with Children() as children:
            code = children.wait(children.start(command))
        if children.signals:
            return 128 + children.signals[0]
        if code:
            failed.append(name)
    lines = report.moved([name for name in names if name not in failed], new=MEASURED)
    if lines:
        print("\nchanged by more than the spread since they were published:", *lines, sep="\n")
    else:
        print("\nno result changed by more than its spread")
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def publish() -> None:
    """Copies the measured results to the published ones, and writes their page and its figures."""
    report.PUBLISHED.mkdir(exist_ok=True)
    for name in BENCHMARKS:
        if (MEASURED / f"{name}.json").exists():
            shutil.copy(MEASURED / f"{name}.json", report.PUBLISHED)
    report.PAGE.write_text(report.page(BENCHMARKS))
    for name, draw in drawing.FIGURES.items():
        path = report.PUBLISHED / f"{name}.json"
        if path.exists():
            draw(result.read(path)[1]).savefig(path.with_suffix(".png"), dpi=120)


def main(argv: Sequence[str]) -> int:
    """Executes a command line, and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = f"some of {', '.join(BENCHMARKS)} (default: all but traffic, compiled, nodes and gpu)"
    commands.add_parser("run", help="measure").add_argument("names", nargs="*", metavar="NAME", help=names)
    commands.add_parser("publish", help="publish the measured results")
    arguments = parser.parse_args(argv[1:])
    if arguments.command == "publish":
        publish()
        return 0
    if unknown := set(arguments.names) - set(BENCHMARKS):
        print(f"names={sorted(unknown)[0]!r}: must be of {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    return run(arguments.names or ON_CPU)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
