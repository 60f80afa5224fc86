"""Who did what when, in simulated time: spans of workers, from a run's config and its records.

The arrival times of a step are a function of the config, so a run need not keep them; which steps there were, how long
each took and how many workers it counted is in the records. One function a kind of run, all to the same spans.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["computing", "waiting", "dropped", "applied"]


class Span(NamedTuple):
    """What one worker did for a while.

    Attributes:
      kind: "computing" a gradient that is used, or one that is "dropped"; "waiting" for the others; "applied", which
        is a moment: its gradient goes into an update.
      worker: its index.
      start: simulated seconds.
      stop: simulated seconds; of a moment the same as start.
    """

    kind: Kind
    worker: int
    start: float
    stop: float


def synchronous(seconds: np.ndarray, *, contributors: int, step_seconds: float, start: float = 0.0) -> list[Span]:
    """Returns the spans of one step of synchronous SGD.

    A worker that is not counted computes until the update is made, in vain, and begins the next step with the others.

    Args:
      seconds: [W], when each worker's gradient is there, from the start of the step.
      contributors: how many are counted, the first to arrive; ties by index.
      step_seconds: when the update is made, from the start of the step.
      start: of the step, in simulated seconds.

    >>> [tuple(span) for span in synchronous(np.array([1.0, 9.0]), contributors=1, step_seconds=2.0)]
    [('computing', 0, 0.0, 1.0), ('waiting', 0, 1.0, 2.0), ('applied', 0, 2.0, 2.0), ('dropped', 1, 0.0, 2.0)]
    """
    counted = np.argsort(np.argsort(seconds, kind="stable")) < contributors
    stop = start + step_seconds
    spans = []
    for worker, its_seconds in enumerate(np.asarray(seconds, float).tolist()):
        arrival = start + its_seconds
        if not counted[worker]:
            spans.append(Span("dropped", worker, start, stop))
            continue
        spans.append(Span("computing", worker, start, arrival))
        if arrival < stop:
            spans.append(Span("waiting", worker, arrival, stop))
        spans.append(Span("applied", worker, stop, stop))
    return spans


def of_run(
    records: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None, *, first_step: int, last_step: int
) -> list[Span]:
    """Returns the spans of a run's recorded steps; a step without a train record is a gap.

    Args:
      records: of the run.
      config: of the run, as config.json has it.
      first_step: counted from 1.
      last_step: the last one.

    Raises:
      ValueError: one line, if the run has no arrival model or no record of these steps.
    """
    from ml_collections import ConfigDict

    import program

    if config is None or config.get("arrivals", {"name": "none"})["name"] == "none":
        raise ValueError("has no config with an arrival model; without one there is no time to draw")
    arrival_seconds = program.make_arrivals(ConfigDict(config))
    spans = []
    for record in records:
        if record["kind"] == "train" and first_step <= record["step"] <= last_step:
            step_seconds = record["step_seconds"]
            spans += synchronous(
                np.asarray(arrival_seconds(record["step"] - 1)),
                contributors=round(record["contributors"]),
                step_seconds=step_seconds,
                start=record["simulated_seconds"] - step_seconds,
            )
    if not spans:
        raise ValueError(f"steps={first_step}:{last_step}: no train record; log_every_steps=1 records them all")
    return spans
