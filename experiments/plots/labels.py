"""Draws the classes of each worker, if workers have training examples of their own: one panel per run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.plots.drawing import COLOURS, Figure, whole_numbers, worker_panels
from reducers.arrivals import foreign_files
from runs.saved_runs import SavedRun

LARGEST = 200  # area of the largest dot, in points squared


def of_runs(runs: Mapping[str, SavedRun], *, columns: int | None = None) -> "Figure":
    """Draws a dot for each class of each worker, whose area is the number of its examples.

    Args:
      runs: label of a run -> what its folder holds.
      columns: as of `worker_panels`.

    Raises:
      ValueError: one line, if the workers of a run all draw from all examples, or its labels.csv is damaged.
    """
    counts = {label: read(saved.folder) for label, saved in runs.items()}
    num_workers = 1 + max(int(workers.max()) for workers, _, _ in counts.values())
    with worker_panels(list(counts), num_workers=num_workers, row=0.2, columns=columns) as (figure, panels):
        for label, axes in panels.items():
            workers, classes, many = counts[label]
            axes.scatter(classes, workers, s=LARGEST * many / many.max(), color=COLOURS[0], linewidths=0)
            axes.set(xlabel="class", xlim=(-0.8, classes.max() + 0.8))
            whole_numbers(axes.xaxis)
    return figure


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the columns of labels.csv as int64: worker, class, and how many examples of the class it has.

    Raises:
      ValueError: one line, if the folder has no labels.csv, or a damaged one.
    """
    path = folder / "labels.csv"
    if not path.exists():
        raise ValueError(f"run={str(folder)!r}: has no labels.csv; its workers all draw from all examples")
    lines = foreign_files.content(path).decode(errors="replace").splitlines()
    try:
        workers, classes, counts = np.loadtxt(lines, np.int64, delimiter=",", skiprows=1, ndmin=2).T
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: is damaged: {error}") from None
    return workers, classes, counts
