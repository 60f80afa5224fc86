"""Who did what when, in simulated time: spans of workers, from a run's config and its records.

The arrival times of a step are a function of the config, so a run need not keep them; which steps there were, how long
each took and how many workers it counted is in the records. One function a kind of run, all to the same spans.
"""

from collections.abc import Collection, Mapping, Sequence
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


def in_order(
    worker: np.ndarray,
    *,
    read_seconds: np.ndarray,
    seconds: np.ndarray,
    gradients_per_step: int = 1,
    dropped_steps: Collection[int] = (),
    first_step: int = 1,
) -> list[Span]:
    """Returns the spans of consecutive gradients of asynchronous SGD, which begin with those of a step.

    Args:
      worker: [E], whose gradient each is.
      read_seconds: [E], when the worker began it.
      seconds: [E], when it arrived.
      gradients_per_step: that make an update, which is made when the last of them arrives.
      dropped_steps: updates of rate 0.
      first_step: the first one's number.

    >>> spans = in_order(np.array([0, 0]), read_seconds=np.array([0.0, 3.0]), seconds=np.array([2.0, 4.0]))
    >>> [tuple(span) for span in spans if span.kind != "applied"]
    [('computing', 0, 0.0, 2.0), ('waiting', 0, 2.0, 3.0), ('computing', 0, 3.0, 4.0)]
    """
    free: dict[int, float] = {}  # worker -> since when
    spans = []
    for event, (its, read, arrival) in enumerate(
        zip(worker.tolist(), read_seconds.tolist(), seconds.tolist(), strict=True)
    ):
        group = event // gradients_per_step
        kind: Kind = "dropped" if first_step + group in dropped_steps else "computing"
        if free.get(its, read) < read:
            spans.append(Span("waiting", its, free[its], read))
        spans.append(Span(kind, its, read, arrival))
        if kind == "computing":
            update = float(seconds[(group + 1) * gradients_per_step - 1])
            spans.append(Span("applied", its, update, update))
        free[its] = arrival
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

    from training import setup as program
    from training import ways

    if config is None or config.get("arrivals", {"name": "none"})["name"] == "none":
        raise ValueError("has no config with an arrival model; without one there is no time to draw")
    arrival_seconds = program.make_arrivals(ConfigDict(config))
    chosen = [r for r in records if r["kind"] == "train" and first_step <= r["step"] <= last_step]
    if not chosen:
        raise ValueError(f"steps={first_step}:{last_step}: no train record; log_every_steps=1 records them all")
    if config.get("server", {"name": "synchronous"})["name"] == "synchronous":
        spans = []
        for record in chosen:
            step_seconds = record["step_seconds"]
            spans += synchronous(
                np.asarray(arrival_seconds(record["step"] - 1)),
                contributors=round(record["contributors"]),
                step_seconds=step_seconds,
                start=record["simulated_seconds"] - step_seconds,
            )
        return spans
    # The order of a run does not depend on its records, but how long it is does.
    last_step = min(last_step, max(record["step"] for record in chosen))
    _, timetable = ways.make_timetable(ConfigDict(config), arrival_seconds=arrival_seconds)
    waves = [turn.arrivals for turn in timetable.turns(first_step - 1, last_step, stops=()) if turn.arrivals]
    return in_order(
        np.concatenate([wave.worker for wave in waves]),
        read_seconds=np.concatenate([wave.read_seconds for wave in waves]),
        seconds=np.concatenate([wave.seconds for wave in waves]),
        gradients_per_step=timetable.gradients_per_step,
        dropped_steps={record["step"] for record in chosen if not record["contributors"]},
        first_step=first_step,
    )
