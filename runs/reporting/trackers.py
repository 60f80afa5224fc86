"""Sinks of tracking services: ``--sink=wandb``, ``--sink=mlflow``. Each needs its package, which nothing else imports.

A run that goes on does so in the same run of the service, which its folder names: a step that is written again has the
same numbers.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runs.identity import flatten

PROJECT = "syncsum"  # where the service's own variable names none


class WeightsAndBiases:
    """The records as a run of Weights & Biases, under "train/loss", "eval/accuracy" and so on.

    The service's own variables say where to: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline (``wandb sync`` sends such
    runs later).

    Args:
      folder: the run's.
      config: as nested dicts.

    Raises:
      ImportError: wandb is not installed.
    """

    def __init__(self, folder: Path, config: dict[str, Any]):
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=project, id=run_id, name=folder.name, dir=folder, config=config, resume="allow", reinit="create_new"
        )

    def append(self, record: Mapping[str, Any]) -> None:
        """Logs a record at its step."""
        self._run.log(_metrics(record), step=record["step"])

    def flush(self) -> None:
        """Does nothing: the service keeps what it is given in a file of its own."""

    def close(self) -> None:
        """Ends this process's part of the run."""
        self._run.finish()


class MLflow:
    """The records as metrics of a run of MLflow, under "train/loss", "eval/accuracy" and so on; the config as params.

    The service's own variables say where to: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME.

    Args:
      folder: the run's; the tag "folder" of the run of MLflow.
      config: as nested dicts.

    Raises:
      ImportError: mlflow (or mlflow-skinny) is not installed.
    """

    def __init__(self, folder: Path, config: dict[str, Any]):
        from mlflow import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        begun = self._client.search_runs([experiment], f"tags.folder = '{folder.resolve()}'", max_results=1)
        if begun:
            self._id = begun[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {"folder": str(folder.resolve())}
            self._id = self._client.create_run(experiment, run_name=folder.name, tags=tags).info.run_id
            for key, value in flatten(config):
                self._client.log_param(self._id, key, value)

    def append(self, record: Mapping[str, Any]) -> None:
        """Logs the numbers of a record at its step."""
        for key, value in _metrics(record).items():
            self._client.log_metric(self._id, key, value, step=record["step"])

    def flush(self) -> None:
        """Does nothing: each number is logged as it comes."""

    def close(self) -> None:
        """Ends this process's part of the run."""
        self._client.set_terminated(self._id)


TRACKERS: Mapping[str, Callable[[Path, dict[str, Any]], Any]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}


def _metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record, named by its kind.

    >>> _metrics({"kind": "train", "step": 3, "loss": 0.5, "arrivals": "measured"})
    {'train/loss': 0.5}
    """
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float) and key != "step"}
    return {f"{record['kind']}/{key}": value for key, value in numbers.items()}
