"""All benchmarks with targets, one after the other: ``make bench``.

    python -m benchmarks run                    # all, into out/bench; then what has moved since the published ones
    python -m benchmarks run step lanes         # some
    python -m benchmarks publish                # makes what lies in out/bench the published results

Each is a process of its own, and a command of its own: python -m benchmarks.NAME. Those of every reducer, of any size,
and of the pipeline of images are python -m benchmarks.reducers and python -m benchmarks.pipeline.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report

BENCHMARKS = ("step", "lanes", "dispatch", "reduction", "processes", "scaling", "start_up", "waiting", "simulation")
MEASURED = Path("out/bench")


def run(names: Sequence[str], *, folder: Path = MEASURED) -> int:
    """Runs benchmarks, and prints what has moved; returns 0, or 1 if some could not be measured.

    Args:
      names: which ones, in this order.
      folder: for their JSON files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, name in enumerate(names, start=1):
        print(f"[{number} of {len(names)}] {name}: {report.title(name)}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", f"--json={folder / name}.json"]
        code = subprocess.run(command).returncode
        if code == 130:
            return code
        if code:
            failed.append(name)
    lines = report.moved([name for name in names if name not in failed], new=folder)
    print("\nmoved by more than the spread, since published:" if lines else "\nnothing moved by more than its spread")
    print(*lines, sep="\n")
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def publish(*, measured: Path = MEASURED) -> None:
    """Copies what was measured to the published results, and writes their page."""
    report.PUBLISHED.mkdir(exist_ok=True)
    for name in BENCHMARKS:
        if (measured / f"{name}.json").exists():
            shutil.copy(measured / f"{name}.json", report.PUBLISHED)
    report.PAGE.write_text(report.page(BENCHMARKS))


def main(argv: Sequence[str]) -> int:
    """Does what a command line says; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = commands.add_parser("run", help="measure").add_argument("names", nargs="*", metavar="NAME")
    names.help = f"of {', '.join(BENCHMARKS)}; by default all"
    commands.add_parser("publish", help="make what was measured the published results")
    given = parser.parse_args(argv[1:])
    if given.command == "publish":
        publish()
        return 0
    if unknown := set(given.names) - set(BENCHMARKS):
        print(f"names={sorted(unknown)[0]!r}: must be of {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    try:
        return run(given.names or BENCHMARKS)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv))
