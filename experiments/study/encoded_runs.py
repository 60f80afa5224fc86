"""Training with encoded gradients: each encoding at its own learning rate, its accuracy at the end, its bytes."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.study import datasets, tuning
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.rule import ACCURACY, Group, Need
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of, scale_of
from experiments.study.tuning import Tuned

FULL = "full"
WORKERS = 8


class Setting(NamedTuple):
    """The training at a scale.

    Attributes:
      model: in words.
      overrides: of configs/mnist.py, the model among them.
      steps: length of a run.
      learned: % of test accuracy above which full gradients must end, or there is nothing to be lost.
    """

    model: str
    overrides: Mapping[str, Any]
    steps: int
    learned: float


_MLP = {"model.name": "mlp", "model.hidden_sizes": (64,), "batch_size_per_worker": 16}
_RESNET = {**datasets.RESNET, "batch_size_per_worker": 32}
_LAPTOP = Setting("MLP of 64 hidden units", _MLP, steps=1000, learned=90.0)
SETTINGS: Mapping[Scale, Setting] = {
    "smoke": _LAPTOP._replace(steps=40),
    "laptop": _LAPTOP,
    "gpu": Setting("ResNet-20", _RESNET, steps=2100, learned=80.0),  # about 11 epochs
}
LEARNED = _LAPTOP.learned


@dataclasses.dataclass(frozen=True)
class EncodedRuns:
    """Encodings side by side, and full gradients among them; ``experiment`` makes a claim of them.

    Attributes:
      encodings: name -> the block ``config.communication``.
      rates: learning rates that are tried at first.
      other_rates: name -> the same of an encoding that needs others.
      gpu_rates: the same of all encodings at scale gpu; empty if there are no runs at that scale.
    """

    encodings: Mapping[str, Mapping[str, Any]]
    rates: Sequence[float]
    other_rates: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    gpu_rates: Sequence[float] = ()

    @property
    def tuned(self) -> Tuned:
        """The runs."""
        return Tuned(
            points=lambda scale: [{"encoding": name} for name in self.encodings],
            grid=self._rates,
            recipe=self._recipe,
            seeds={"smoke": 1, "laptop": 5, "gpu": 5},
            tuning_seeds={"gpu": 1},
            first=("data",),
        )

    def experiment(self, **declared: Any) -> Experiment:
        """Returns the ``Experiment``; ``declared`` are its prose, rule, hours, and what else is its own."""
        reduce = evaluations_of("step", "epoch", "accuracy", "sent_bytes")
        return self.tuned.experiment(
            model=lambda rows: f"{SETTINGS[scale_of(rows)].model}, {WORKERS} workers", reduce=reduce, **declared
        )

    def group(self, name: str) -> Group:
        """Returns an encoding's reported runs, for a rule to compare."""
        return self.tuned.group(name, ACCURACY, encoding=name)

    @property
    def has_learnt(self) -> Need:
        """The need that full gradients learn much, or no encoding could lose anything."""
        return Need(
            f"full gradients do not end above {LEARNED:g} % (at scale gpu {SETTINGS['gpu'].learned:g} %)",
            self.learnt_little,
        )

    def found(self, rows: Rows) -> dict[str, list[Row]]:
        """Returns the reported rows of each encoding that has some."""
        return {name: same for name in self.encodings if (same := self.tuned.tests(rows, encoding=name))}

    def ends(self, rows: Rows, name: str) -> list[float]:
        """Returns an encoding's accuracies at the end, in percent; 0 for a run that is not finite."""
        return ask.accuracies(self.tuned.tests(rows, encoding=name))

    def sent(self, rows: Rows, name: str) -> float:
        """Returns the bytes that a worker sends in a run, mean of the seeds."""
        return statistics.fmean(ask.last(row, "sent_bytes") for row in self.tuned.tests(rows, encoding=name))

    def learnt_little(self, rows: Rows) -> str:
        """Returns a sentence if full gradients learn little, so that no encoding could lose anything; else ""."""
        if statistics.fmean(self.ends(rows, FULL)) > SETTINGS[scale_of(rows)].learned:
            return ""
        return f"With full gradients little is learnt: the runs end at {self.group(FULL).sample(rows)}."

    def _rates(self, scale: Scale, point: Mapping[str, Any]) -> Sequence[float]:
        return self.gpu_rates if scale == "gpu" else self.other_rates.get(point["encoding"], self.rates)

    def _recipe(self, scale: Scale, *, encoding: str, rate: float) -> Run:
        setting, block = SETTINGS[scale], self.encodings[encoding]
        overrides = {
            **datasets.image_set(scale),
            **setting.overrides,
            "optimizer.learning_rate": rate,
            "learning_rate_scaling": "none",
            **{f"communication.{key}": value for key, value in block.items()},
            "num_workers": WORKERS,
            **tuning.steps(setting.steps, evaluate=setting.steps // 10, log=setting.steps // 10),
        }
        return Run(labels={"data": overrides["data.name"]}, spec="configs/mnist.py", overrides=overrides)
