"""The activities of workers in the time of a run.

Simulated arrival times are a function of the config, so a run does not record them. The records say which steps there
were, how long each took, and how many workers it counted. Real workers arrive when their run recorded that they did.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import runs
from reducers.registry import components
from training.setup import make_arrivals
from training.steps import late_workers

Kind = Literal["computing", "waiting", "dropped", "applied"]
Arrivals = Callable[[int], tuple[np.ndarray, np.ndarray | None]]
"""Index of a step -> when each worker's gradient arrives, and when the worker begins it; see ``synchronous``."""


class Span(NamedTuple):
    """An activity of one worker.

    Attributes:
      kind: "computing" a gradient that is used; computing one that is "dropped"; "waiting" for other workers; or
        "applied", the moment at which the worker's gradient is applied.
      worker: the worker's index.
      start: the start in seconds of the run.
      stop: the end in seconds of the run; for a moment, equal to start.
    """

    kind: Kind
    worker: int
    start: float
    stop: float


def synchronous(
    seconds: np.ndarray, *, contributors: int, step_seconds: float, start: float = 0.0, began: np.ndarray | None = None
) -> list[Span]:
    """Returns the spans of one step of synchronous SGD.

    A worker that is not counted computes until the update. One that is interrupted begins the next step together with
    the others, one that finishes when it is done.

    Args:
      seconds: [W], when each worker's gradient arrives, from the start of the step; infinite for one that does not.
      contributors: how many workers are counted, which are the first to arrive; ties are broken by index.
      step_seconds: the time of the update, from the start of the step.
      start: the start of the step, in seconds of the run.
      began: [W], when each worker begins, from the start of the step, infinite for one that does not; before, it
        computes a gradient that is dropped. None if all begin together.

    >>> [tuple(span) for span in synchronous(np.array([1.0, 9.0]), contributors=1, step_seconds=2.0)]
    [('computing', 0, 0.0, 1.0), ('waiting', 0, 1.0, 2.0), ('applied', 0, 2.0, 2.0), ('dropped', 1, 0.0, 2.0)]
    """
    counted = np.argsort(np.argsort(seconds, kind="stable")) < contributors
    stop = start + step_seconds
    spans = []
    begins = (np.zeros(len(seconds)) if began is None else np.asarray(began, float)).tolist()
    for worker, its_seconds in enumerate(np.asarray(seconds, float).tolist()):
        begin, arrival = min(start + begins[worker], stop), start + its_seconds
        if begin > start:
            spans.append(Span("dropped", worker, start, begin))
        if not counted[worker]:
            if begin < stop:
                spans.append(Span("dropped", worker, begin, stop))
            continue
        spans.append(Span("computing", worker, begin, arrival))
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
    dropped: np.ndarray | None = None,
) -> list[Span]:
    """Returns the spans of consecutive gradients of asynchronous SGD.

    Args:
      worker: [E], the worker of each gradient; the first gradients are those of the first step.
      read_seconds: [E], when the worker began the gradient.
      seconds: [E], when the gradient arrived.
      gradients_per_step: how many gradients make an update, which happens when the last of them arrives.
      dropped: [E] bool, whether the gradient is in no update; None if all are in one.

    >>> spans = in_order(np.array([0, 0]), read_seconds=np.array([0.0, 3.0]), seconds=np.array([2.0, 4.0]))
    >>> [tuple(span) for span in spans if span.kind != "applied"]
    [('computing', 0, 0.0, 2.0), ('waiting', 0, 2.0, 3.0), ('computing', 0, 3.0, 4.0)]
    """
    idle_since: dict[int, float] = {}
    spans = []
    rows = zip(worker.tolist(), read_seconds.tolist(), seconds.tolist(), strict=True)
    for event, (index, read, arrival) in enumerate(rows):
        kind: Kind = "dropped" if dropped is not None and dropped[event] else "computing"
        if idle_since.get(index, read) < read:
            spans.append(Span("waiting", index, idle_since[index], read))
        spans.append(Span(kind, index, read, arrival))
        if kind == "computing":
            update = float(seconds[(event // gradients_per_step + 1) * gradients_per_step - 1])
            spans.append(Span("applied", index, update, update))
        idle_since[index] = arrival
    return spans


def of_run(
    records: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | None,
    *,
    first_step: int,
    last_step: int,
    folder: Path | None = None,
) -> list[Span]:
    """Returns the spans of a run's steps; a step of a synchronous run without a train record gives a gap.

    The steps of an asynchronous run follow from the order of arrival, up to the last one that has a train record.

    Args:
      records: the run's records.
      config: the run's config, as in config.json.
      first_step: the first step to draw, counted from 1.
      last_step: the last step to draw.
      folder: the run's, in which a live run recorded its arrivals.

    Raises:
      ValueError: one line, if the run has neither an arrival model nor recorded arrivals, or no record of these steps;
        or if its simulated workers do not meet at the end of each step, since no record has their clocks.
    """
    server = (config or {}).get("server", {"name": "synchronous"})
    model = (config or {}).get("arrivals", {"name": "none"})
    live_steps, live_order = _recorded(folder)
    has_model = server.get("order") or model["name"] != "none"
    if config is None or not (has_model or live_steps or live_order):
        raise ValueError("has no config with an arrival model; without one there is no time to draw")
    if own := sorted(components.names_in([model, server])):
        raise ValueError(f"has {own[0]!r} in its config.json, and a plot executes no code that a run's files name")
    chosen = [r for r in records if r["kind"] == "train" and first_step <= r["step"] <= last_step]
    if not chosen:
        raise ValueError(f"steps={first_step}:{last_step}: no train record; log_every_steps=1 records them all")
    mode = asynchronous.settings.make(**server)
    if mode is None:
        # Reducers that count communications keep a clock of each worker. With batches of one step, all meet at its end.
        if live_steps is None and any("communications" in r and r.get("batch_steps") != 1 for r in chosen):
            name = config["reducer"]["name"]
            raise ValueError(f"reducer={name!r}: its workers do not meet in each step, and no record has their clocks")
        of_step = live_steps or (_finishing(config, records) if "busy_workers" in chosen[0] else _simulated(config))
        spans = []
        for record in chosen:
            step_seconds = record["step_seconds"]
            seconds, began = of_step(record["step"] - 1)
            spans += synchronous(
                seconds,
                contributors=round(record["contributors"]),
                step_seconds=step_seconds,
                start=record["simulated_seconds"] - step_seconds,
                began=began,
            )
        return spans
    # The records say how long the run is.
    last_step = min(last_step, max(record["step"] for record in chosen))
    pieces = asynchronous.order(
        live_order or getattr(mode, "order", None) or asynchronous.from_model(make_arrivals(ConfigDict(config))),
        num_workers=config["num_workers"],
        num_events=last_step * mode.gradients_per_update,
        first_event=(first_step - 1) * mode.gradients_per_update,
        staleness_bound=mode.staleness_bound,
        gradients_per_update=mode.gradients_per_update,
    )
    events = [events for events, _ in pieces]
    return in_order(
        np.concatenate([piece.worker for piece in events]),
        read_seconds=np.concatenate([piece.read_seconds for piece in events]),
        seconds=np.concatenate([piece.seconds for piece in events]),
        gradients_per_step=mode.gradients_per_update,
        dropped=_dropped(mode, np.concatenate([piece.staleness for piece in events]), config["num_workers"]),
    )


def _dropped(mode: asynchronous.Settings, staleness: np.ndarray, num_workers: int) -> np.ndarray | None:
    """Returns which gradients the server's rule drops, by their staleness, [E]; None if it drops none."""
    if not isinstance(mode, asynchronous.Server) or mode.rule.rates == "one":
        return None
    rate = jax.vmap(lambda own: mode.rule.apply((), (), staleness=own, num_workers=num_workers)[1])
    return np.asarray(rate(jnp.asarray(staleness, jnp.int32)) == 0)


def _simulated(config: Mapping[str, Any]) -> Arrivals:
    model = make_arrivals(ConfigDict(config))
    return lambda step: (np.asarray(model(step)), None)


def _finishing(config: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Arrivals:
    """Returns the arrivals of a run whose late workers finish; all earlier steps decide who is late."""
    model = make_arrivals(ConfigDict(config))
    took = {record["step"]: record["step_seconds"] for record in records if record["kind"] == "train"}
    free_at = [jnp.zeros(config["num_workers"], jnp.float32)]

    def of_step(step: int) -> tuple[np.ndarray, np.ndarray]:
        for before in range(len(free_at) - 1, step):
            if before + 1 not in took:
                raise ValueError(f"step {before + 1}: has no train record; log_every_steps=1 records them all")
            seconds = jnp.float32(took[before + 1])
            free_at.append(late_workers.free_after(free_at[-1], model(before), seconds))
        began = np.where(free_at[step] >= np.float32(took[step + 1]), np.inf, free_at[step])
        return np.asarray(late_workers.arrivals(free_at[step], model(step))), began

    return of_step


def _recorded(folder: Path | None) -> tuple[Arrivals | None, asynchronous.Recorded | None]:
    """Returns the arrivals that a live run recorded, of its steps and in their order; None for one that it lacks."""
    if folder is None:
        return None, None
    events = folder / "events.npz"
    return _of_steps(folder), asynchronous.read_order(str(events)) if events.exists() else None


def _of_steps(folder: Path) -> Arrivals | None:
    """Returns the arrivals of the steps of a live run, from the latest file that begins with the step or before it."""
    names = (path.stem.removeprefix("worker_seconds-") for path in folder.glob("worker_seconds-*.npz"))
    starts = [int(name) for name in names if name.isdecimal()]
    if 1 not in starts:  # those of simulated runs begin after the step in which programs were compiled
        return None
    read = functools.cache(lambda first: runs.read_times(runs.trace_path(folder, first_step=first)))

    def of_step(step: int) -> tuple[np.ndarray, np.ndarray | None]:
        first = max(start for start in starts if start <= step + 1)
        arrays, row = read(first), step + 1 - first
        if row >= len(arrays["seconds"]):
            raise ValueError(f"{runs.trace_path(folder, first_step=first).name}: ends before step {step + 1}")
        return arrays["seconds"][row], arrays["began"][row] if "began" in arrays else None

    return of_step
