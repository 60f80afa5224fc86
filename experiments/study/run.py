"""A run of a claim or a sweep, and the row that a finished one becomes."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

import runs as run_folders
from configs import dependencies
from configs import flags as config_flags

Scale = Literal["smoke", "laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "gpu", "paper")
Row = Mapping[str, Any]  # one finished run: its labels, its measurements, its origin
Rows = Sequence[Row]
Mode = Literal["max", "min"]  # which values of a quantity are better
Range = tuple[float, float]  # the least and the greatest value
Reduce = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]  # a run's records -> the measurements in its row


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run: of a config by train.py, or of the claim's own ``measure``.

    Attributes:
      labels: keys and values that set it apart, in its name and in its row; the arguments of a measurement.
      spec: config file with an optional :variant; "" for a measurement.
      overrides: dotted key of the config -> value.
      flags: flags of train.py, such as num_devices.
      cores: how many CPU cores its process has, of those that it could have; None leaves it all.
    """

    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spec: str = ""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cores: int | None = None

    @property
    def name(self) -> str:
        """The labels as one text.

        >>> Run(labels={"reducer": "adasum", "num_workers": 8, "seed": 0}).name
        'reducer=adasum,num_workers=8,seed=0'
        """
        return ",".join(f"{key}={value}" for key, value in self.labels.items()) or "all"

    @property
    def all_overrides(self) -> dict[str, Any]:
        """The overrides; a run that diverges goes on unless they say otherwise, as that is a result."""
        return {"on_nonfinite": "ignore", **self.overrides}

    @property
    def overriding(self) -> list[str]:
        """All overrides as arguments."""
        return [f"--config.{key}={value}" for key, value in self.all_overrides.items()]

    @property
    def arguments(self) -> list[str]:
        """Arguments of train.py."""
        flags = [
            (key, each) for key, value in self.flags.items() for each in (value if isinstance(value, list) else [value])
        ]
        return [f"--config={self.spec}", *self.overriding, *(f"--{key}={value}" for key, value in flags)]

    @property
    def config(self) -> dict[str, Any]:
        """Everything that the run's result depends on.

        Raises:
          ConfigError: one line, if there is no such config.
        """
        return self._loaded[0]

    @property
    def code(self) -> run_folders.Code:
        """The files outside of this repository that the run's result depends on."""
        return self._loaded[1]

    @functools.cached_property
    def _loaded(self) -> tuple[dict[str, Any], run_folders.Code]:
        if not self.spec:
            return {"measure": dict(self.labels)}, {}
        config = self.load()
        return config.to_dict(), dependencies.describe(config)

    def load(self) -> ConfigDict:
        """Returns the config as the run's command line gives it.

        Raises:
          ConfigError: one line, if there is no such config.
        """
        return config_flags.load(self.spec, self.overriding, trusted=self.flags.get("trust_module", "").split(","))


def repeated(
    cases: Callable[[Scale], Sequence[Mapping[str, Any]]], *, seeds: Mapping[Scale, int]
) -> Callable[[Scale, Rows], list[Run]]:
    """Returns the ``runs`` of a claim that measures each case with several seeds.

    >>> runs = repeated(lambda scale: [{"n": 2}, {"n": 4}], seeds={"smoke": 1, "laptop": 5})
    >>> [run.name for run in runs("smoke", [])]
    ['n=2,seed=0', 'n=4,seed=0']
    """

    def runs(scale: Scale, rows: Rows) -> list[Run]:
        del rows
        return [Run(labels={**case, "seed": seed}) for case in cases(scale) for seed in range(seeds[scale])]

    return runs


def evaluations(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations, with one list per quantity; most claims need nothing else of a run.

    >>> evaluations([{"kind": "train", "step": 1}, {"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'step': [2], 'loss': [0.5], 'accuracy': [0.9]}
    """
    found = [record for record in records if record["kind"] == "eval"]
    keys = [key for record in found[:1] for key in record if key != "kind" and not run_folders.is_of_host_clock(key)]
    return {key: [record[key] for record in found if key in record] for key in keys}


def evaluations_of(*keys: str) -> Reduce:
    """Returns a ``reduce`` that keeps only these quantities; each evaluation must have all of them.

    >>> evaluations_of("loss")([{"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'loss': [0.5]}
    """

    def reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found = [record for record in records if record["kind"] == "eval"]
        return {key: [record[key] for record in found] for key in keys}

    return reduce


def range_of(quantity: str, values: Iterable[float]) -> Range:
    """Returns the least and the greatest number that a quantity can be, at which its intervals and bands end.

    An accuracy lies between 0 and 1; a quantity that was never negative begins at 0.

    Args:
      quantity: its name in the records.
      values: all values of it that were measured.

    >>> range_of("top_5_accuracy", [0.9]), range_of("loss", [0.01]), range_of("loss", [0.01, -2.0])
    ((0.0, 1.0), (0.0, inf), (-inf, inf))
    """
    found = list(values)
    if not found or min(found) < 0:
        return -math.inf, math.inf
    is_share = quantity.endswith("accuracy") and max(found) <= 1
    return 0.0, 1.0 if is_share else math.inf


def scale_of(rows: Rows) -> Scale:
    """Returns the scale that rows were made at."""
    return rows[0].get("origin", {}).get("scale", "laptop")


def are_same(one: Row, other: Row) -> bool:
    """Returns whether two rows are of the same run: by the config and flags that they record."""
    return identity(one) == identity(other)


def identity(row: Row) -> str:
    """Returns twelve hexadecimal digits of a hash of the config and the flags that a row records.

    Unlike the fingerprint of the whole config it stays as it is when configs get a new key with a default.
    """
    return hash_of(json.dumps([row["origin"].get(key) for key in ("config", "flags")], sort_keys=True))


def hash_of(text: str) -> str:
    """Returns twelve hexadecimal digits of a hash of a text, such as that of a rule."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
