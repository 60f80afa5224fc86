"""Reads finished runs from folders, rows of experiments or tables: configs, losses and seconds a step."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import reducers
import runs
from launch.output import say
from planning.parsing import MOST_MACHINES, read_csv
from reducers.arrivals import foreign_files
from runs import identity, saved_runs

Clock = Literal["real", "simulated"]
MOST_STEP = 2**31 - 1  # runs count steps in 32 bits
SECONDS = (1e-12, 1e12)  # range of a step's seconds: the squares of their inverses neither overflow nor underflow
# Blocks and keys of configs, and labels of rows, that must be equal in all runs that are compared.
COMPARED = ("data", "model", "task", "split", "arrivals", "target")
# Keys that may differ between runs of one method: machines, batches, learning rates, and how often files are written.
NO_METHOD = {
    *("num_workers", "seed", "batch_size_per_worker", "optimizer.learning_rate", "rate", "num_devices"),
    *(*identity.NOT_IDENTITY, *identity.LENGTHS, *identity.CADENCES),
}


class Run(NamedTuple):
    """A finished run.

    Attributes:
      name: the run's folder or the name of its row; in a table, the file and the row number.
      config: dotted key -> value, from the run's config or the labels of its row.
      machines: the number of machines, m.
      steps: [S], the steps at which the run was evaluated.
      losses: [S], the loss at each of them.
      step_seconds: the seconds of a step; NaN if they are unknown.
    """

    name: str
    config: Mapping[str, Any]
    machines: int
    steps: np.ndarray
    losses: np.ndarray
    step_seconds: float

    @property
    def finite(self) -> np.ndarray:
        """[S], whether an evaluation follows at least one step and has a finite loss."""
        return (self.steps > 0) & np.isfinite(self.losses)


def read(
    sources: Sequence[str], *, clock: Clock = "real", loss: str = "loss", only: Mapping[str, Any] | None = None
) -> list[Run]:
    """Returns the runs in folders, at any depth, and in files of rows.

    Args:
      sources: folders, and files whose names end in .jsonl.
      clock: "real" for the median over the laps except the first one, which compiles; or "simulated".
      loss: the name that records give to the minimised quantity.
      only: key -> value; runs with another value are ignored.

    Raises:
      ValueError: one line, if a source has no runs or is damaged, or if runs do not compare or do not have the clock.
    """
    found: list[Run] = []
    only = only or {}
    for source in sources:
        path = Path(source).expanduser()
        try:
            own = _of_rows(path, loss) if path.suffix == ".jsonl" else _of_folder(path, clock, loss)
        except (OSError, ValueError, LookupError, TypeError) as error:
            missing = "it lacks " if isinstance(error, KeyError) else ""
            raise ValueError(f"source={source!r}: {missing}{error}") from None
        own = [run for run in own if all(run.config.get(key) == value for key, value in only.items())]
        if not own:
            that = "".join(f" and {key}={value}" for key, value in only.items())
            raise ValueError(f"source={source!r}: holds no runs with evaluations of {loss!r}{that}")
        found += own
    check_same(found)
    check_times(found, clock=clock)
    return found


def read_times(path: str) -> list[Run]:
    """Returns a run for each row of a CSV file with the columns machines and seconds.

    Raises:
      ValueError: one line, if the file is not such a table, or a time or number of machines is out of range.
    """
    refused = f"source={path!r}: must be a CSV file with the columns machines and seconds"
    times = read_csv(path, {"machines": int, "seconds": float}, refused=refused)
    none = np.array([])
    found = [Run(f"{path}, row {i}", {}, m, none, none, seconds) for i, (m, seconds) in enumerate(times, start=1)]
    check_times(found)
    return found


def _of_folder(folder: Path, clock: Clock, loss: str) -> list[Run]:
    if not folder.is_dir():
        raise ValueError("must be a folder of runs, or a file of rows (.jsonl)")
    found = []
    for path in saved_runs.below(folder):
        saved = saved_runs.read(str(path))
        if saved.lost:
            say(f"planning: {path}: {saved.lost}", error=True)
        if clock == "real" and (slowest := slowest_process(saved.records, name=str(path))):
            say(f"planning: {path}: {slowest}", error=True)
        config = dict(identity.flatten(saved.config or {}))
        evaluated = [record for record in saved.records if record["kind"] == "eval" and loss in record]
        if evaluated:
            steps, losses = _curve(evaluated, loss, name=str(path))
            seconds = step_seconds(saved.records, clock, name=str(path))
            found.append(Run(str(path), config, config["num_workers"], steps, losses, seconds))
    return found


def _of_rows(path: Path, loss: str) -> list[Run]:
    found = []
    lines = foreign_files.content(path).decode().splitlines()
    for place, line in enumerate(lines, start=1):
        row = runs.from_json(line)
        if not isinstance(row, dict) or not {"run", "num_workers", "step", loss} <= row.keys():
            raise ValueError(f"row {place}: must have run, num_workers, step and {loss}")
        row = runs.decode_numbers(row)
        name = str(row.pop("run"))
        columns = {key: row[key] for key in ("step", loss, "simulated_seconds") if key in row}
        lengths = {len(column) if isinstance(column, list) else 0 for column in columns.values()}
        if len(lengths) > 1 or 0 in lengths:
            words = "must be lists of one length, with a number for each evaluation"
            raise ValueError(f"run={name!r}: {', '.join(columns)}: {words}")
        labels = {key: value for key, value in row.items() if isinstance(value, str | int | float)}
        evaluated = [dict(zip(columns, numbers, strict=True)) for numbers in zip(*columns.values(), strict=True)]
        steps, losses = _curve(evaluated, loss, name=name)
        seconds = step_seconds(evaluated, "simulated", name=name)
        found.append(Run(name, labels, row["num_workers"], steps, losses, seconds))
    return found


def _curve(evaluated: Sequence[Mapping[str, Any]], loss: str, *, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and the losses of a run's evaluations.

    Raises:
      ValueError: one line, if steps decrease, or a loss is not a number.
    """
    before = 0
    steps, losses = [], []
    for record in evaluated:
        step = record["step"]
        if type(step) is not int or not before <= step <= MOST_STEP:
            words = f"must be an int in [{before}, {MOST_STEP}], as evaluations follow each other"
            raise ValueError(f"run={name!r}: step={step!r}: {words}")
        before = step
        steps.append(step)
        losses.append(_number(record, loss, name=name))
    return np.array(steps), np.array(losses, np.float64)


def _number(record: Mapping[str, Any], key: str, *, name: str) -> float:
    """Returns a number of a record, which may be infinite or NaN; raises ValueError, one line, for anything else."""
    if type(value := record[key]) not in (int, float):
        raise ValueError(f"run={name!r}: {key}={value!r} at step {record['step']}: must be a number")
    return value


def step_seconds(records: Sequence[Mapping[str, Any]], clock: Clock, *, name: str = "") -> float:
    """Returns the seconds of a step: the median of a run's laps except the first, or the mean on the simulated clock.

    Raises:
      ValueError: one line with the run's name, if a value is not a number, or a speed is not positive.

    >>> step_seconds([{"kind": "eval", "step": 4, "simulated_seconds": 6.0}], "simulated")
    1.5
    """
    key = {"simulated": "simulated_seconds", "real": "steps_per_second"}[clock]
    timed = [record for record in records if key in record and record["step"] > 0]
    found = [_number(record, key, name=name) for record in timed]
    if clock == "simulated":
        return found[-1] / timed[-1]["step"] if found and found[-1] > 0 else np.nan
    for record, speed in zip(timed, found, strict=True):
        if not speed > 0:
            raise ValueError(f"run={name!r}: {key}={speed!r} at step {record['step']}: must be above 0")
    return 1 / statistics.median(found[1:] or found) if found else np.nan


def slowest_process(records: Sequence[Mapping[str, Any]], *, name: str = "") -> str:
    """Returns in words which process held up the others most, from the records of the last number of processes.

    It is "" if the records do not have their seconds.

    >>> slowest_process([{"step": 9, "slowest_process": 1, "host_seconds_0": 0.01, "host_seconds_1": 0.2}])
    'process 1 of 2 works 0.2 s a step by itself, the fastest one 0.01 s: input and records, no devices'
    """
    laps = [record for record in records if "slowest_process" in record]
    if not laps:
        return ""
    keys = [key for key in laps[-1] if key.startswith(runs.HOST_SECONDS)]
    laps = [record for record in laps if f"{runs.HOST_SECONDS}{len(keys)}" not in record and record.keys() >= {*keys}]
    own = np.median([[_number(record, key, name=name) for key in keys] for record in laps], axis=0)
    slowest = f"process {int(own.argmax())} of {len(keys)} works {own.max():.4g} s a step by itself"
    return f"{slowest}, the fastest one {own.min():.4g} s: input and records, no devices"


def check_times(found: Sequence[Run], *, clock: Clock | None = None) -> None:
    """Checks the number of machines and the seconds a step of each run.

    Args:
      found: the runs.
      clock: the clock that timed their steps; None for a table, which has only one.

    Raises:
      ValueError: one line with the run's name, if a value is unknown or out of range.
    """
    other = {"real": "; use --clock=simulated", "simulated": "; use --clock=real", None: ""}[clock]
    low, high = SECONDS
    for run in found:
        if type(run.machines) is not int or not 1 <= run.machines <= MOST_MACHINES:
            raise ValueError(f"run={run.name!r}: machines={run.machines!r}: must be int in [1, {MOST_MACHINES}]")
        if np.isnan(run.step_seconds):
            raise ValueError(f"run={run.name!r}: has no {clock or 'measured'} seconds of a step{other}")
        if not low <= run.step_seconds <= high:
            words = f"must be in [{low:g}, {high:g}]"
            raise ValueError(f"run={run.name!r}: takes {run.step_seconds:g} seconds a step, {words}")


def check_same(found: Sequence[Run]) -> None:
    """Checks that all runs have the same data, model, task and target.

    Raises:
      ValueError: one line with the name of a run that differs from the first one.
    """
    for run in found[1:]:
        one, other = found[0].config, run.config
        for key in sorted({*one, *other}):
            is_compared = key.split(".")[0] in COMPARED and key != "data.dir"
            if is_compared and one.get(key) != other.get(key):
                words = f"{key} is {other.get(key)!r}, and {one.get(key)!r} in {found[0].name!r}"
                raise ValueError(f"run={run.name!r}: does not compare: {words}")


def by_method(found: Sequence[Run], *, keys: Sequence[str] | None = None) -> dict[str, list[Run]]:
    """Groups runs by method, the values of the keys in which they differ; machines, seeds and rates do not count.

    Args:
      found: the runs.
      keys: the keys that make a method; None for all keys that differ.

    Raises:
      ValueError: one line, if no run has a key.
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
    """Returns a config without the options of its reducer that have their defaults."""
    name = str(config.get("reducer.name"))
    parameters = reducers.REDUCERS.parameters(name) if name in reducers.REDUCERS else {}
    defaults = {f"reducer.{key}": parameter.default for key, parameter in parameters.items()}
    return {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}


def fit_each(methods: Mapping[str, list[Run]], fit: Callable[[list[Run]], Any]) -> dict[str, Any]:
    """Returns the fit to the runs of each method.

    Raises:
      ValueError: one line with the method's name and the error of its fit.
    """
    fits = {}
    for name, runs_of_method in methods.items():
        try:
            fits[name] = fit(runs_of_method)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return fits
