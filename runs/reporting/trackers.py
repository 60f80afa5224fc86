"""Sinks of tracking services: ``--sink=wandb``, ``--sink=mlflow``. Each needs its package, which no other code imports.

A resumed run continues the same run of the service: the folder keeps the id of its first start, wherever it is moved. A
step that is written again has the same numbers.
"""

import hashlib
import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from runs.identity import flatten

Ending = Literal["finished", "stopped", "failed"]  # ending of a run, or of this process's part of it

PROJECT = "syncsum"  # unless the service's own variable names another
GROUPS = ("WANDB_RUN_GROUP", "MLFLOW_EXPERIMENT_NAME")  # the services' own variables for what several runs share


class WeightsAndBiases:
    """The records as a run of Weights & Biases, under "train/loss", "eval/accuracy" and so on.

    The service's own variables set the destination: WANDB_PROJECT, WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_MODE=offline
    (``wandb sync`` sends such runs later).

    Args:
      folder: the run's folder.
      config: the run's config, as nested dicts.
      run_id: id of the folder; "" takes its path.

    Raises:
      ImportError: if wandb is not installed.
    """

    def __init__(self, folder: Path, config: dict[str, Any], *, run_id: str = ""):
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_hash(run_id, folder),
            name=folder.name,
            dir=folder,
            config=config,
            resume="allow",
            reinit="create_new",
        )
        self._exit_code = 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Logs a record at its step."""
        self._run.log(metrics(record), step=record["step"])

    def flush(self) -> None:
        """Does nothing: the service keeps records in its own file."""

    def end(self, ending: Ending) -> None:
        """Marks the run as finished, as failed, or as one that will go on."""
        if ending == "stopped":
            self._run.mark_preempting()
        self._exit_code = 0 if ending == "finished" else 1

    def close(self) -> None:
        """Ends this process's part of the run."""
        self._run.finish(exit_code=self._exit_code)


class MLflow:
    """The records as metrics of a run of MLflow, under "train/loss", "eval/accuracy" and so on; the config as params.

    The service's own variables set the destination: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. The first record
    creates or resumes the run. Characters that MLflow does not allow in a name are written as their numbers.

    Args:
      folder: the run's folder; the tag "folder" of MLflow's run shows it.
      config: the run's config, as nested dicts.
      run_id: id of the folder; its hash is the tag "run". "" takes the folder's path.

    Raises:
      ImportError: if mlflow (or mlflow-skinny) is not installed.
    """

    def __init__(self, folder: Path, config: dict[str, Any], *, run_id: str = ""):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a user who names a folder as the store wants one
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        try:
            self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        except MlflowException:  # another run has created it meanwhile
            self._experiment = self._client.get_experiment_by_name(name).experiment_id
        self._folder, self._config = folder, config
        self._tag = _hash(run_id, folder)
        self._id: str | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Logs the numbers of a record at its step, in one call."""
        from mlflow.entities import Metric

        self._id = self._id or self._begin()
        now = int(time.time() * 1000)
        numbers = [Metric(_allowed(key), value, now, record["step"]) for key, value in metrics(record).items()]
        for at in range(0, len(numbers), 1000):  # MLflow's bound for a call
            self._client.log_batch(self._id, metrics=numbers[at : at + 1000])

    def flush(self) -> None:
        """Does nothing: each record is logged as it comes."""

    def end(self, ending: Ending) -> None:
        """Marks the run as finished, failed or stopped, if it has begun."""
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ending]
        if self._id is not None:
            self._client.set_terminated(self._id, status=status)

    def close(self) -> None:
        """Does nothing: ``end`` has closed the run."""

    def _begin(self) -> str:
        """Creates or resumes the folder's run; returns its id."""
        from mlflow.entities import Param

        begun = self._client.search_runs([self._experiment], f"tags.run = '{self._tag}'", max_results=1)
        if begun:
            run = begun[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
        else:
            tags = {"folder": str(self._folder.resolve()), "run": self._tag}
            run = self._client.create_run(self._experiment, run_name=self._folder.name, tags=tags)
        if not run.data.params:
            params = [Param(_allowed(key), str(value)) for key, value in flatten(self._config)]
            for at in range(0, len(params), 100):
                self._client.log_batch(run.info.run_id, params=params[at : at + 100])
        return run.info.run_id


TRACKERS: Mapping[str, Callable[..., Any]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}


def _hash(run_id: str, folder: Path) -> str:
    """Returns 16 hexadecimal digits for a folder's id, which may be any text."""
    return hashlib.sha256((run_id or str(folder.resolve())).encode()).hexdigest()[:16]


def _allowed(name: str) -> str:
    """Returns a name that MLflow allows: a path of letters, digits and " _-.", at most 250 characters long.

    >>> _allowed("train/loss"), _allowed("train/top@5"), _allowed("train/a//b")
    ('train/loss', 'train/top_40_5', 'train_2f_a_2f__2f_b')
    """
    name = re.sub(r"[^\w/. \-]", lambda match: f"_{ord(match[0]):x}_", name)
    if posixpath.normpath(name) != name:
        name = name.replace("/", "_2f_")
    return name if len(name) <= 250 else f"{name[:233]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record, named by its kind.

    >>> metrics({"kind": "train", "step": 3, "loss": 0.5, "arrivals": "measured", "is_late": True})
    {'train/loss': 0.5}
    """
    return {
        f"{record['kind']}/{key}": value
        for key, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step"
    }
