"""Training with encoded gradients: each encoding at its own learning rate, its accuracy at the end, its bytes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.study import datasets, frames, tuning
from experiments.study.claim import Claim, Frame, Rows, Run, Scale, evaluations_of
from experiments.study.tuning import Tuned

FULL = "full"


_MLP = {**datasets.MLP, "batch_size_per_worker": 16}
_RESNET = {**datasets.RESNET, "batch_size_per_worker": 32}
STEPS: Mapping[Scale, int] = {"smoke": 40, "laptop": 1000, "gpu": 2100}  # the last is about 11 epochs
LEARNED: Mapping[Scale, int] = {"smoke": 90, "laptop": 90, "gpu": 80}  # % of test accuracy with full gradients


@dataclasses.dataclass(frozen=True)
class EncodedRuns:
    """Encodings to compare, with full gradients as one of them; ``claim`` makes a claim of them.

    Attributes:
      encodings: name -> the block ``config.communication``.
      rates: the first grid of learning rates.
      other_rates: name -> the grid of an encoding that needs another one.
      gpu_rates: the grid of all encodings at scale gpu; empty if there are no runs at that scale.
      workers: number of workers.
    """

    encodings: Mapping[str, Mapping[str, Any]]
    rates: Sequence[float]
    other_rates: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    gpu_rates: Sequence[float] = ()
    workers: int = 8

    @property
    def tuned(self) -> Tuned:
        """The runs of each encoding at its own learning rate."""
        return Tuned(
            points=lambda scale: [{"encoding": name} for name in self.encodings],
            grid=self._rates,
            recipe=self._recipe,
            seeds={"smoke": 1, "laptop": 5, "gpu": 5},
            tuning_seeds={"gpu": 1},
            first=("data",),
        )

    def claim(self, **declared: Any) -> Claim:
        """Returns the claim; ``declared`` are its prose, judge, hours, and other attributes of its own."""
        return self.tuned.claim(
            model=self._model,
            labels=["encoding"],
            reduce=evaluations_of("step", "epoch", "accuracy", "sent_bytes"),
            **{"frame": self.frame, **declared},
        )

    def frame(self, rows: Rows) -> Frame:
        """Returns the reported runs, with their accuracy at the end in percent.

        ``sent`` is the megabytes that a worker sends in the run, ``share`` their ratio to those of full gradients.
        """
        df = self.tuned.frame(rows)
        df = df.assign(sent=frames.last(df, "sent_bytes") / 1e6)
        return df.assign(share=df["sent"] / df.loc[df["encoding"] == FULL, "sent"].mean())

    def _model(self, df: Frame) -> str:
        network = "ResNet-20" if df["scale"].iloc[0] == "gpu" else "MLP of 64 hidden units"
        return f"{network}, {self.workers} workers"

    def _rates(self, scale: Scale, point: Mapping[str, Any]) -> Sequence[float]:
        if scale == "gpu":
            return self.gpu_rates
        return self.other_rates.get(point["encoding"], self.rates)

    def _recipe(self, scale: Scale, *, encoding: str, rate: float) -> Run:
        steps, block = STEPS[scale], self.encodings[encoding]
        overrides = {
            **datasets.image_set(scale),
            **(_RESNET if scale == "gpu" else _MLP),
            "optimizer.learning_rate": rate,
            "learning_rate_scaling": "none",
            **{f"communication.{key}": value for key, value in block.items()},
            "num_workers": self.workers,
            **tuning.steps(steps, evaluate=steps // 10, log=steps // 10),
        }
        return Run(spec="configs/mnist.py", overrides=overrides)
