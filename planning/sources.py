"""Finished runs, from their folders or from rows of experiments: what they were, how far they came, in what time."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import reducers
import runs
from runs import identity, saved_runs

Clock = Literal["real", "simulated"]
# What must be the same of runs that compare: blocks and keys of configs, and labels of rows.
COMPARED = ("data", "model", "task", "split", "arrivals", "target")
# What may differ without being another method: the machines, their batches and rates, and what is written when.
NO_METHOD = {
    *("num_workers", "seed", "batch_size_per_worker", "optimizer.learning_rate", "rate", "num_devices"),
    *(*identity.NOT_IDENTITY, *identity.LENGTHS, *identity.CADENCES),
}


class Run(NamedTuple):
    """A finished run.

    Attributes:
      name: its folder, or the name of its row.
      config: key with dots -> value, of its config or of the labels of its row.
      machines: m.
      steps: [S], at which it was evaluated.
      losses: [S].
      step_seconds: of a step; NaN where the clock was not running.
    """

    name: str
    config: Mapping[str, Any]
    machines: int
    steps: np.ndarray
    losses: np.ndarray
    step_seconds: float


def read(
    sources: Sequence[str], *, clock: Clock = "real", loss: str = "loss", only: Mapping[str, Any] | None = None
) -> list[Run]:
    """Returns the runs in folders and below them, and in files of rows.

    Args:
      sources: folders, and files whose names end in .jsonl.
      clock: "real" for the median of the laps, without the first one, which compiles; or "simulated".
      loss: the quantity that is minimised, as records name it.
      only: key -> value; runs that have another one do not count.

    Raises:
      ValueError: one line, for a source without runs, a damaged one, and runs that do not compare.
    """
    found: list[Run] = []
    for source in sources:
        path = Path(source).expanduser()
        try:
            own = _of_rows(path, loss) if path.suffix == ".jsonl" else _of_folder(path, clock, loss)
        except (OSError, ValueError, LookupError, TypeError) as error:
            missing = "it lacks " if isinstance(error, KeyError) else ""
            raise ValueError(f"source={source!r}: {missing}{error}") from None
        own = [run for run in own if all(run.config.get(key) == value for key, value in (only or {}).items())]
        if not own:
            that = "".join(f" and {key}={value}" for key, value in (only or {}).items())
            raise ValueError(f"source={source!r}: holds no runs with evaluations of {loss!r}{that}")
        found += own
    check_same(found)
    return found


def _of_folder(folder: Path, clock: Clock, loss: str) -> list[Run]:
    if not folder.is_dir():
        raise ValueError("must be a folder of runs, or a file of rows (.jsonl)")
    found = []
    for path in saved_runs.below(folder):
        saved = saved_runs.read(str(path))
        config = dict(identity.flatten(saved.config or {}))
        evaluated = [record for record in saved.records if record["kind"] == "eval" and loss in record]
        if evaluated:
            steps, losses = ([record[key] for record in evaluated] for key in ("step", loss))
            seconds = step_seconds(saved.records, clock)
            found.append(Run(str(path), config, config["num_workers"], np.array(steps), np.array(losses), seconds))
    return found


def _of_rows(path: Path, loss: str) -> list[Run]:
    found = []
    for row in map(runs.from_json, path.read_text().splitlines()):
        row = runs.decode_numbers(row)
        labels = {
            key: value for key, value in row.items() if key != "run" and isinstance(value, str | int | float | bool)
        }
        steps, losses = np.array(row["step"]), np.array(row[loss])
        seconds = row["simulated_seconds"][-1] / row["step"][-1] if "simulated_seconds" in row else np.nan
        found.append(Run(row["run"], labels, row["num_workers"], steps, losses, seconds))
    return found


def step_seconds(records: Sequence[Mapping[str, Any]], clock: Clock) -> float:
    """Returns the seconds of a step: the median of a run's laps but the first, or the mean of its simulated ones.

    >>> step_seconds([{"kind": "eval", "step": 4, "simulated_seconds": 6.0}], "simulated")
    1.5
    """
    if clock == "simulated":
        clocks = [record["simulated_seconds"] / record["step"] for record in records if "simulated_seconds" in record]
        return clocks[-1] if clocks and clocks[-1] > 0 else np.nan
    speeds = [record["steps_per_second"] for record in records if record["kind"] == "train"]
    return 1 / statistics.median(speeds[1:] or speeds) if speeds else np.nan


def check_same(found: Sequence[Run]) -> None:
    """Refuses runs of other data, models or targets, by their name.

    Raises:
      ValueError: one line.
    """
    for run in found[1:]:
        one, other = (
            {key: value for key, value in each.config.items() if key.split(".")[0] in COMPARED and key != "data.dir"}
            for each in (found[0], run)
        )
        if differ := [key for key in sorted(one | other) if one.get(key) != other.get(key)]:
            key = differ[0]
            words = f"{key} is {other.get(key)!r}, and {one.get(key)!r} in {found[0].name!r}"
            raise ValueError(f"run={run.name!r}: does not compare: {words}")


def by_method(found: Sequence[Run], *, keys: Sequence[str] | None = None) -> dict[str, list[Run]]:
    """Returns the runs of each method: whatever they differ in besides machines, seeds and rates.

    Args:
      found: the runs.
      keys: the keys by which methods differ; None for all.

    Raises:
      ValueError: one line, for a key that no run has.
    """
    if unknown := [key for key in keys or () if all(key not in run.config for run in found)]:
        raise ValueError(f"method={unknown[0]!r}: no run has such a key")
    stated = [run.config if keys else _stated(run.config) for run in found]
    if keys is None:
        every = dict.fromkeys(key for config in stated for key in config if key not in NO_METHOD)
        differ = [key for key in every if len({repr(config.get(key)) for config in stated}) > 1]
        keys = sorted(differ, key=lambda key: not key.endswith(".name"))
    methods: dict[str, list[Run]] = {}
    for run, config in zip(found, stated, strict=True):
        label = ", ".join(f"{key.removesuffix('.name')}={config[key]}" for key in keys if key in config)
        methods.setdefault(label or "all runs", []).append(run)
    return methods


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config without the options of its reducer that are the defaults."""
    name = str(config.get("reducer.name"))
    parameters = reducers.REDUCERS.parameters(name) if name in reducers.REDUCERS else {}
    defaults = {f"reducer.{key}": parameter.default for key, parameter in parameters.items()}
    return {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}


def each(methods: Mapping[str, list[Run]], do: Callable[[list[Run]], Any]) -> dict[str, Any]:
    """Returns what is made of the runs of each method.

    Raises:
      ValueError: one line, which names the method.
    """
    made = {}
    for name, own in methods.items():
        try:
            made[name] = do(own)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return made
