"""Whether a finished run has learnt anything, and which flags are worth trying next."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from reducers import adasum
from reducers.wrappers import communication

Mode = Literal["max", "min"]

_FEW_EPOCHS = 3.0  # in which a run may not have had the time to learn
_STANDARD_ERRORS = 2.0  # within which a share of examples counts as chance


def fault(
    value: float, *, mode: Mode, chance: float | None = None, num_examples: int = 0, first: float | None = None
) -> str | None:
    """Returns in words what is wrong with the final value of a run's metric; None if nothing is.

    Args:
      value: of the last evaluation.
      mode: whether the metric is to be maximal or minimal.
      chance: the metric's value without any knowledge; None if it is not known.
      num_examples: how many were evaluated. A metric to be maximal is taken as a share of them, with their sampling
        error.
      first: the metric of the first evaluation, or at the first record of a run with one evaluation; None if not known.

    >>> fault(0.11, mode="max", chance=0.1, num_examples=360)
    'at chance'
    >>> fault(0.95, mode="max", chance=0.1, num_examples=360, first=0.4)
    >>> fault(9.0, mode="min", chance=65.0, first=8.0)
    'worse than at the start'
    """
    if not math.isfinite(value):
        return "not finite"
    sign = 1 if mode == "max" else -1

    def error(bound: float) -> float:
        share = min(max(bound, 0.0), 1.0) if mode == "max" and num_examples else 0.0
        return _STANDARD_ERRORS * math.sqrt(share * (1 - share) / max(num_examples, 1))

    if chance is not None and sign * value <= sign * chance + error(chance):
        return "at chance"
    if first is not None and math.isfinite(first) and sign * value < sign * first - error(first):
        return "worse than at the start"
    return None


def cures(config: Mapping[str, Any], *, epoch: float) -> list[str]:
    """Returns flags of which each is worth trying after a run that has learnt nothing, the best one first.

    A sum takes steps that are as many times longer as there are workers, so its rate is divided by their number.

    Args:
      config: the run's config, as nested dicts.
      epoch: passes over the data that the run made.

    >>> config = {"num_workers": 32, "reducer": {"name": "sum"}, "optimizer": {"learning_rate": 0.2}}
    >>> cures(config, epoch=9.0)
    ['--config.optimizer.learning_rate=0.00625', '--config.clip_norm=1', '--config.reducer.name=mean']
    """
    reducer, rate = config["reducer"]["name"], config["optimizer"].get("learning_rate")  # one's own may have none
    found = []
    if reducer == "sum" and rate is not None:
        found.append(f"--config.optimizer.learning_rate={rate / config['num_workers']:.3g}")
    if epoch < _FEW_EPOCHS:
        length = "train_steps" if config["train_steps"] else "train_epochs"
        found.append(f"--config.{length}={config[length] * math.ceil(_FEW_EPOCHS / max(epoch, 0.001))}")
    if config.get("learning_rate_scaling", "none") != "none":
        found.append("--config.learning_rate_scaling=none")
    if reducer != "sum" and rate is not None:
        found.append(f"--config.optimizer.learning_rate={rate / 10:.3g}")
    if config.get("clip_norm") is None:
        found.append("--config.clip_norm=1")
    if reducer != "mean":
        found.append("--config.reducer.name=mean")
    return found


def comparison(config: Mapping[str, Any]) -> list[str]:
    """Returns flags of a run that is worth comparing with: another reducer, or a synchronous run if there is none.

    The step of Adasum lies between that of the mean and that of the sum. So it learns at the rate of either, and the
    rate is not scaled for it. An encoding that Adasum refuses is left out.
    """
    if config["server"]["name"] != "synchronous":
        return ["--config.server.name=synchronous"]
    if config["reducer"]["name"] not in ("mean", "sum"):
        return ["--config.reducer.name=mean"]
    flags = ["--config.reducer.name=adasum"]
    if config.get("learning_rate_scaling", "none") != "none":
        flags.append("--config.learning_rate_scaling=none")
    try:
        sent = config.get("communication", {"name": "full"})  # which runs of before do not have
        communication.make(**sent, reducer=adasum("worker"), axis_name="worker")
    except ValueError:
        flags.append("--config.communication.name=full")
    return flags
