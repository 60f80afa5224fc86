"""What rows of claims need in tests: where they came from, and that all of a report can be told."""

from experiments import report

ORIGIN = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}


def told(experiment, rows):
    """The whole section, with a figure that is drawn: nothing of it fails."""
    report.draw(experiment, rows)
    return report.section(experiment, [{**row, "origin": ORIGIN} for row in rows], figure="figure.png")
