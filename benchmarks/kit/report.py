"""Results of benchmarks as Markdown, and their changes since they were published."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit import result
from benchmarks.kit.result import Measured

HERE = Path(__file__).parents[1]
NOTES = HERE / "notes"
PUBLISHED = HERE / "results"
PAGE = HERE / "RESULTS.md"
LEFT = NOTES / "left.md"  # the last results of commands that were removed
_HEADER = ("What", "Median", "Quartiles", "Rounds", "Target", "")


def page(names: Iterable[str], *, folder: Path = PUBLISHED) -> str:
    """Returns the page for all benchmarks that have results in a folder.

    Args:
      names: the benchmarks, in order.
      folder: the folder of their JSON files.
    """
    top = (
        "# Benchmarks\n\n"
        "`python -m benchmarks publish` writes this page from `benchmarks/results/`; `make bench` measures again and "
        "compares. A ratio is of two times of the same round. Shared machines are noisy, so consider the quartiles.\n"
    )
    sections = [section(name, *result.read(folder / f"{name}.json")) for name in names if _there(name, folder)]
    return "\n".join([top, *sections, LEFT.read_text()])


def section(name: str, environment: Mapping[str, Any], found: Sequence[Measured]) -> str:
    """Returns the section of one benchmark: its table, its machine, and the notes on its bottlenecks."""
    path = NOTES / f"{name}.md"
    notes = f"\n{path.read_text().strip()}\n" if path.exists() else ""
    is_of_counts = all(one.column for one in found)
    header, *rows = _counts(found) if is_of_counts else [_HEADER, *(_cells(one, notes=notes) for one in found)]
    lines = [header, ["---"] * len(header), *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return (
        f"## {name}\n\n{title(name)} `python -m benchmarks run {name}`\n\n{table}\n\n{_machine(environment)}\n{notes}"
    )


def title(name: str) -> str:
    """Returns the first line of a benchmark's docstring, without importing it."""
    return (ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or "").partition("\n")[0]


def moved(names: Iterable[str], *, new: Path, old: Path = PUBLISHED) -> list[str]:
    """Returns a line for each quantity that changed by more than its spread, as ``Measured.moved`` says."""
    lines = []
    for name in names:
        if _there(name, new) and _there(name, old):
            before = {one.title: one for one in result.read(old / f"{name}.json")[1]}
            for one in result.read(new / f"{name}.json")[1]:
                if one.title in before and one.moved(before[one.title]):
                    lines.append(f"{name}: {one.title}: {before[one.title].median:.3g} -> {one.median:.3g} {one.unit}")
    return lines


def _there(name: str, folder: Path) -> bool:
    return (folder / f"{name}.json").exists()


def _counts(found: Sequence[Measured]) -> list[list[str]]:
    """Returns a table with a row for each name and a column for each heading.

    >>> _counts([Measured("mean", [1.75], column="8"), Measured("mean", [2.0], column="64")])
    [['What', '8', '64'], ['mean', '1.75', '2']]
    """
    columns = list(dict.fromkeys(one.column for one in found))
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        rows.setdefault(one.name, {})[one.column] = _number(one.median)
    table = [["What", *columns]]
    for name, cells in rows.items():
        table.append([name, *(cells.get(column, "") for column in columns)])
    return table


def _cells(one: Measured, *, notes: str) -> tuple[str, ...]:
    target = str(one.target or "")
    if one.missing:
        return (one.name, "", "", "0", target, f"not measured: {one.missing}")
    low, high = one.quartiles
    verdict = one.verdict
    if verdict and f"### {one.name}\n" in notes:
        verdict = f"[{verdict}](#{_anchor(one.name)})"
    spread = f"{_number(low)} to {_number(high)}"
    return (one.name, f"{_number(one.median)} {one.unit}", spread, str(len(one.values)), target, verdict)


def _number(value: float) -> str:
    """Formats a number with three significant digits, and large ones without an exponent.

    >>> _number(1234567.0), _number(0.0123456), _number(1.5)
    ('1,234,567', '0.0123', '1.5')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _anchor(heading: str) -> str:
    """Returns the anchor that GitHub gives a heading.

    >>> _anchor("adasum over mean, 8 devices")
    'adasum-over-mean-8-devices'
    """
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _machine(environment: Mapping[str, Any]) -> str:
    versions = {"python": environment["python"], **environment["packages"]}
    named = ("python", "jax", "jaxlib", "flax", "optax", "torch", "torchvision", "transformers")
    packages = ", ".join(f"{name} {versions[name]}" for name in named if versions.get(name))
    devices = f"{len(environment['devices'])} x {environment['devices'][0]}"
    commit = f"commit {(environment['commit'] or 'unknown')[:10]}, {environment['tree']}"
    return f"{environment['started'][:10]}, {devices}, {environment['cpu_count']} cores, {packages}; {commit}."
