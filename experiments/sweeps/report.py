"""The report of a sweep: the files in its folder, and the text that the command prints."""

from pathlib import Path

import runs as run_folders
from experiments.execution import results as run_results
from experiments.execution import saved_runs
from experiments.plots import drawing
from experiments.sweeps import figure as sweep_figure
from experiments.sweeps import table as sweep_table
from experiments.sweeps.results import SweepResults

TABLE, CSV, FIGURE = "table.md", "table.csv", "figure.png"


def write(results: SweepResults, *, root: Path) -> str:
    """Writes table.md, table.csv and figure.png into the folder of a sweep, and returns the text of the command."""
    text = sweep_table.text(results)
    others = runs_of_other_points(results, root=root)
    if others:
        text += f"\n{others} more runs in this folder are of other points: python -m experiments ls {root}\n"
    run_folders.write_atomically(root / TABLE, text.encode())
    run_folders.write_atomically(root / CSV, sweep_table.comma_separated(results).encode())
    written = [str(root / TABLE), str(root / CSV)]
    try:
        drawing.save(sweep_figure.draw(results), root / FIGURE, dpi=200)
        written.append(str(root / FIGURE))
    except ValueError as error:
        (root / FIGURE).unlink(missing_ok=True)  # that of another grid would not be of this table
        written.append(f"no figure: {error}")
    return "\n".join([text, *written])


def runs_of_other_points(results: SweepResults, *, root: Path) -> int:
    """Returns the number of runs in the folder of a sweep that are not of its points."""
    own = {run_results.folder_of(run, root) for run in results.sweep.runs}
    return len([folder for folder in saved_runs.below(root) if folder not in own])
