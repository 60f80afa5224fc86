"""A plan of N + b machines as a table, as a figure, and in words beside what the paper found."""

from typing import TYPE_CHECKING

import numpy as np

from experiments.drawing import COLOURS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.planner import Plan

# (arrival model, machines) -> the paper's best N, and where that was read.
PAPER_BEST: dict[tuple[str, int], tuple[int, str]] = {
    ("paper_cluster", 100): (96, "arXiv 1604.00981, read in a secondary source"),
}


def table(plan: "Plan") -> str:
    """Returns a line per split whose steps are known, most backups last, the best one marked.

    Columns: N, b, mean time of a step with its standard error, steps and time to the target with its standard error,
    how many times faster than without backups, and the score per machine.
    """
    heads = ("N", "b", "step s", "+-", "steps", "target s", "+-", "speed-up", "score")
    lines = ["  " + "".join(f"{head:>11}" for head in heads)]
    for i in range(len(plan.steps) - 1, -1, -1):
        if not np.isfinite(plan.steps[i]):
            continue
        n = i + 1
        numbers = [plan.step_seconds[i], plan.step_error[i], plan.steps[i], plan.target_seconds[i]]
        numbers += [plan.target_error[i], plan.target_seconds[-1] / plan.target_seconds[i], plan.score[i]]
        mark = "* " if n == plan.best else "  "
        lines.append(mark + f"{n:>11}{len(plan.steps) - n:>11}" + "".join(f"{number:>11.5g}" for number in numbers))
    return "\n".join(lines)


def findings(plan: "Plan", *, model: str) -> list[str]:
    """Says which split is best, which others are as good within the error, and what the paper found."""
    machines, best = len(plan.steps), plan.best
    margin = 2 * np.hypot(plan.target_error, plan.target_error[best - 1])
    close = plan.num_required[plan.target_seconds <= plan.target_seconds[best - 1] + margin]
    lines = [f"best: {best} + {machines - best}"]
    if len(close) > 1:
        lines[0] += f"; within two standard errors of it: N = {', '.join(map(str, close))}"
    if (model, machines) in PAPER_BEST:
        theirs, source = PAPER_BEST[model, machines]
        verdict = "the same" if theirs == best else f"this plan misses it by {abs(best - theirs)}"
        lost = plan.target_seconds[theirs - 1] / plan.target_seconds[best - 1] - 1
        lines.append(f"paper: {theirs} + {machines - theirs} ({source}): {verdict}; it takes {lost:.1%} longer here")
    return lines


def draw(plan: "Plan", *, title: str) -> "Figure":
    """Draws time per step, steps, and time to the target against N, as the paper does, with the best N marked.

    Args:
      plan: of all splits.
      title: above the figure.

    Returns:
      The figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=160)
        panels = figure.subplots(1, 3)
        series = (
            ("steps to the target", plan.steps, np.zeros_like(plan.steps)),
            ("mean time of a step (s)", plan.step_seconds, plan.step_error),
            ("mean time to the target (s)", plan.target_seconds, plan.target_error),
        )
        for axes, (label, values, error) in zip(panels, series, strict=True):
            axes.errorbar(plan.num_required, values, yerror(error), color=COLOURS[0], linewidth=1.4)
            axes.axvline(plan.best, color=COLOURS[1], linestyle="--", linewidth=1)
            axes.set(xlabel="gradients a step, N", ylabel=label, yscale="log")
        panels[2].annotate(
            f"{plan.best} + {len(plan.steps) - plan.best}",
            (plan.best, plan.target_seconds[plan.best - 1]),
            textcoords="offset points",
            xytext=(-8, 14),
            ha="right",
            color=COLOURS[1],
        )
        figure.suptitle(title, fontsize=10)
    return figure


def yerror(error: np.ndarray) -> np.ndarray | None:
    """Error bars of two standard errors, or none for a formula."""
    return 2 * error if np.any(error) else None
