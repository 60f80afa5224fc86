"""Arrival times drawn; matplotlib is asked for here alone, and only when called."""

import importlib
from typing import Any

import numpy as np

# Recollections, unverified: of the paper's figures about its 100 machines, which could not be read again. They are what
# the fit was made to and what its figure shows; no test asserts them.
MEAN_SECONDS = (1.4, 1.8)  # within which most mean times to the k-th of 100 gradients lie
ARRIVED_BY = ((98, 2.0, 0.8), (100, 2.0, 0.3))  # (k, seconds, share of steps with the k-th gradient there by then)
SLOWEST_SECONDS = 310  # of all steps seen; their number is not known

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MAX_POINTS = 2_000  # of a curve


def draw(seconds: np.ndarray, *, name: str, path: str) -> None:
    """Draws the mean and median time to the k-th arrival, and the distribution of the last few.

    Args:
      seconds: [S, W], sorted in each step.
      name: the model's; ``paper_cluster`` is drawn with the recollections that it is fitted to.
      path: of the figure.

    Raises:
      ImportError: one line, where matplotlib is missing.
    """
    try:
        pyplot: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise ImportError("figure: needs matplotlib, which is not installed") from None
    num_steps, num_workers = seconds.shape
    figure = pyplot.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    every = np.arange(1, num_workers + 1)
    left.plot(every, seconds.mean(axis=0, dtype=np.float64), color=_COLOURS[0], label="mean")
    left.plot(every, np.median(seconds, axis=0), "--", color=_COLOURS[1], label="median")
    left.set(xlabel="k", ylabel="time to the k-th arrival (s)", yscale="log")
    last = sorted({num_workers, max(1, num_workers - 2), max(1, num_workers - 10), max(1, num_workers // 2)})
    places = np.unique(np.linspace(0, num_steps - 1, _MAX_POINTS).astype(int))
    for colour, k in zip(_COLOURS, last, strict=False):
        right.plot(np.sort(seconds[:, k - 1])[places], (places + 1) / num_steps, color=colour, label=f"k = {k}")
    right.set(xlabel="s", ylabel="share of steps in which the k-th arrived", ylim=(0, 1.02))
    right.set_xlim(float(seconds.min()), float(np.quantile(seconds[:, -1], 0.9)) * 1.1)
    if name == "paper_cluster" and num_workers == 100:
        _add_recollections(left, right)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.legend(frameon=False)
    figure.suptitle(f"{name}, {num_workers} workers, {num_steps} steps", fontsize=10)
    figure.savefig(path, dpi=160)


def _add_recollections(left: Any, right: Any) -> None:
    label = "unverified recollection"
    left.axhspan(*MEAN_SECONDS, color="#999999", alpha=0.25, label=label)
    left.axhline(SLOWEST_SECONDS, color="#999999", linestyle=":", label=f"slowest step, {label}")
    points = [(time, share, k) for k, time, share in ARRIVED_BY]
    right.plot([p[0] for p in points], [p[1] for p in points], "kx", markersize=8, label=label)
    for time, share, k in points:
        right.annotate(f"k = {k}", (time, share), textcoords="offset points", xytext=(7, -3), fontsize=8)
