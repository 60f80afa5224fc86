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
    tables = _counts(found) if is_of_counts else [[_HEADER, *(_cells(one, notes=notes) for one in found)]]
    text = "\n\n".join(map(_table, tables))
    return f"## {name}\n\n{title(name)} `python -m benchmarks run {name}`\n\n{text}\n\n{_machine(environment)}\n{notes}"


def title(name: str) -> str:
    """Returns the first line of a benchmark's docstring, without importing it."""
    return (ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or "").partition("\n")[0]


def moved(names: Iterable[str], *, new: Path, old: Path = PUBLISHED) -> list[str]:
    """Returns a line for each quantity that changed by more than its spread, as ``Measured.moved`` says.

    In a table of counts, also one for each row that can be counted no longer, or now can.
    """
    lines = []
    for name in names:
        if _there(name, new) and _there(name, old):
            before = {one.title: one for one in result.read(old / f"{name}.json")[1]}
            for one in result.read(new / f"{name}.json")[1]:
                old_one = before.get(one.title)
                if old_one is None:
                    continue
                has_changed = bool(one.column) and bool(one.missing) != bool(old_one.missing)
                if has_changed or one.moved(old_one):
                    values = " -> ".join(each.missing or f"{each.median:.3g}" for each in (old_one, one))
                    lines.append(f"{name}: {one.title}: {values} {one.unit}".rstrip())
    return lines


def _there(name: str, folder: Path) -> bool:
    return (folder / f"{name}.json").exists()


def _counts(found: Sequence[Measured]) -> list[list[Sequence[str]]]:
    """Returns tables with a row for each name and a column for each heading; rows that share no column are apart.

    >>> _counts([Measured("mean", [1.75], column="8"), Measured("mean", [2.0], column="64")])
    [[['What', '8', '64'], ['mean', '1.75', '2']]]
    """
    by_name: dict[str, dict[str, str]] = {}
    for one in found:
        by_name.setdefault(one.name, {})[one.column] = one.missing or _number(one.median)
    headings: list[list[str]] = []
    rows: list[dict[str, dict[str, str]]] = []
    for name, cells in by_name.items():
        number = next((i for i, columns in enumerate(headings) if cells.keys() & set(columns)), len(headings))
        if number == len(headings):
            headings.append([])
            rows.append({})
        headings[number] += [column for column in cells if column not in headings[number]]
        rows[number][name] = cells
    return [
        [["What", *columns], *([name, *(cells.get(column, "") for column in columns)] for name, cells in of.items())]
        for columns, of in zip(headings, rows, strict=True)
    ]


def _table(lines: Sequence[Sequence[str]]) -> str:
    header, *rows = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows])


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
    of_peers, of_compilers = (
        ("torch", "torchvision", "transformers"),
        ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin"),
    )
    named = ("python", "jax", "jaxlib", "flax", "optax", *of_peers, *of_compilers)
    packages = ", ".join(f"{name} {versions[name]}" for name in named if versions.get(name))
    devices = f"{len(environment['devices'])} x {environment['devices'][0]}"
    commit = f"commit {(environment['commit'] or 'unknown')[:10]}, {environment['tree']}"
    return f"{environment['started'][:10]}, {devices}, {environment['cpu_count']} cores, {packages}; {commit}."
