"""Draws which classes each worker has, where workers have training examples of their own: one panel per run."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.plots.drawing import COLOURS, Figure, whole_numbers, worker_panels
from reducers.arrivals import foreign_files
from runs.saved_runs import SavedRun

LARGEST = 200  # area of the largest dot, in points squared


def of_runs(runs: Mapping[str, SavedRun]) -> "Figure":
    """Draws a dot for each class of each worker, whose area is the number of its examples.

    Args:
      runs: label of a run -> what its folder holds.

    Raises:
      ValueError: one line, if the workers of a run all draw from all examples, or its labels.csv is damaged.
    """
    counts = {label: read(saved.folder) for label, saved in runs.items()}
    num_workers = max(map(len, counts.values()))
    with worker_panels(list(counts), num_workers=num_workers, row=0.2) as (figure, panels):
        for label, axes in panels.items():
            table = counts[label]
            workers, classes = np.nonzero(table)
            areas = LARGEST * table[workers, classes] / table.max()
            axes.scatter(classes, workers, s=areas, color=COLOURS[0], linewidths=0)
            axes.set(xlabel="class", xlim=(-0.8, table.shape[1] - 0.2))
            whole_numbers(axes.xaxis)
    return figure


def read(folder: Path) -> np.ndarray:
    """Returns how many examples of each class each worker of a run has, [W, C] int64.

    Raises:
      ValueError: one line, if the folder has no labels.csv, or one that no run writes.
    """
    path = folder / "labels.csv"
    if not path.exists():
        raise ValueError(f"run={str(folder)!r}: has no labels.csv; its workers all draw from all examples")
    text = foreign_files.content(path).decode(errors="replace").splitlines()
    try:
        rows = [tuple(int(row[key]) for key in ("worker", "label", "examples")) for row in csv.DictReader(text)]
        workers, classes, many = np.array(rows, np.int64).T
        table = np.zeros((workers.max() + 1, classes.max() + 1), np.int64)
        table[workers, classes] = many
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{str(path)!r}: is damaged: {type(error).__name__}") from None
    return table
