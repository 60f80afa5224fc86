"""Sweeps over any config: points by grids, lists in step, random draws and seeds, and the runs of these points."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from configs import config_file
from experiments.study.run import Run
from reducers.registry import literal

Point = Mapping[str, Any]  # dotted key of the config -> value
SPLIT = "data.evaluate_on"
_DRAW = re.compile(r"(uniform|loguniform|choice)\((.*)\)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs of one config: points that are compared, each with several seeds.

    The runs are evaluated on the validation split unless the config file, ``fixed`` or the points set
    ``data.evaluate_on``, or their data have no such key.

    Attributes:
      spec: config file, with an optional :variant.
      points: the points to compare; one that sets the seed keeps it.
      fixed: keys that have the same value in all runs.
      drawn: keys whose values are random, for which no next value is suggested.
      seeds: number of seeds of each point.
      flags: flags of train.py.

    >>> [run.name for run in Sweep(spec="configs/digits.py", points=[{"reducer.name": "sum"}], seeds=2).runs]
    ['reducer.name=sum,seed=0', 'reducer.name=sum,seed=1']
    """

    spec: str
    points: Sequence[Point]
    fixed: Point = dataclasses.field(default_factory=dict)
    drawn: Collection[str] = ()
    seeds: int = 1
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def runs(self) -> list[Run]:
        """A run for each point and seed; points that are equal share theirs.

        Raises:
          ConfigError: one line, for a config that is not valid.
        """
        found: dict[str, Run] = {}
        for point in self.points:
            own = {**self.fixed, **point}
            for seed in [own["seed"]] if "seed" in own else range(self.seeds):
                labels, overrides = {**point, "seed": seed}, {**own, "seed": seed}
                run = Run(labels=labels, spec=self.spec, overrides=overrides, flags=self.flags)
                run = self._on_validation_split(run)
                found.setdefault(json.dumps(run.config, sort_keys=True), run)  # 1 and 1.0 are one point
        return list(found.values())

    def _on_validation_split(self, run: Run) -> Run:
        if SPLIT in run.overrides or "evaluate_on" not in run.config["data"] or self._file_has_split:
            return run
        return dataclasses.replace(run, overrides={SPLIT: "validation", **run.overrides})

    @functools.cached_property
    def _file_has_split(self) -> bool:
        path, _, variant = self.spec.partition(":")
        return "evaluate_on" in config_file.execute(path).get_config(variant).data

    @property
    def splits(self) -> str:
        """The split that is evaluated; points may differ in it."""
        return " and the ".join(sorted({run.config["data"].get("evaluate_on", "test") for run in self.runs}))

    @property
    def keys(self) -> list[str]:
        """The keys that the points set, apart from the seed."""
        keys = dict.fromkeys(key for point in self.points for key in point)
        return [key for key in keys if key != "seed"]

    @property
    def name(self) -> str:
        """A name from the config and the keys that all runs share, so that a larger grid keeps the finished runs.

        >>> Sweep(spec="configs/digits.py:smoke", points=[{"seed": 0}]).name
        'digits-smoke-...'
        """
        shared = "\n".join([self.spec, *sorted(f"{key}={value}" for key, value in self.fixed.items())])
        stem = re.sub(r"\W+", "-", self.spec.removesuffix(".py").rpartition("/")[2].replace(".py:", "-"))
        return f"{stem}-{hashlib.sha256(shared.encode()).hexdigest()[:8]}"


def grid(values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Returns the product of lists: every value with every other.

    >>> grid({"seed": [0, 1], "reducer.name": ["sum"]})
    [{'seed': 0, 'reducer.name': 'sum'}, {'seed': 1, 'reducer.name': 'sum'}]
    """
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def zipped(values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Returns the points of lists that are taken in step; the lists must be equally long.

    >>> zipped({"num_workers": [2, 4], "batch_size_per_worker": [32, 16]})
    [{'num_workers': 2, 'batch_size_per_worker': 32}, {'num_workers': 4, 'batch_size_per_worker': 16}]
    """
    if len(set(map(len, values.values()))) > 1:
        lengths = ", ".join(f"{key}: {len(listed)}" for key, listed in values.items())
        raise ValueError(f"zip: lists must be equally long, not {lengths}")
    return [dict(zip(values, point, strict=True)) for point in zip(*values.values(), strict=True)]


def drawn(laws: Mapping[str, str], *, count: int) -> list[Point]:
    """Returns random points, the same in each call: "uniform(a, b)", "loguniform(a, b)" or "choice(x, y, ...)" by key.

    >>> points = drawn({"optimizer.learning_rate": "loguniform(1e-3, 1)"}, count=2)
    >>> [round(point["optimizer.learning_rate"], 4) for point in points]
    [0.3414, 0.1879]
    """
    generator = random.Random(0)
    return [{key: _draw(key, law, generator) for key, law in laws.items()} for _ in range(count)]


def combined(*parts: Sequence[Point]) -> list[Point]:
    """Returns the product of the parts: each point of one combined with each point of the others."""
    return [{key: value for point in points for key, value in point.items()} for points in itertools.product(*parts)]


def of_config(spec: str) -> list[Point]:
    """Returns the points of a config file's ``sweep()``, a list of {dotted key: value}.

    Raises:
      ValueError: one line, if the file has no such function or it returns something else.
    """
    path = spec.partition(":")[0]
    module = config_file.execute(path)
    if not hasattr(module, "sweep"):
        raise ValueError(f"config={path!r}: has no sweep(); give --grid, --zip or --draw")
    points = module.sweep()
    if not isinstance(points, list) or not all(isinstance(point, Mapping) and point for point in points):
        raise ValueError(f"config={path!r}: sweep() must return a list of {{dotted key: value}}")
    return points


def values_of(text: str) -> tuple[str, list[Any]]:
    """Parses "key=a,b,c"; commas within brackets do not separate.

    >>> values_of("model.hidden_sizes=(64,),(64,64)")
    ('model.hidden_sizes', [(64,), (64, 64)])
    """
    key, listed = _sides(text, form="key=value,value,...")
    return key, [literal(part.strip()) for part in _split(listed)]


def value_of(text: str) -> tuple[str, Any]:
    """Parses "key=value"; commas are part of the value.

    >>> value_of("model.hidden_sizes=64,64")
    ('model.hidden_sizes', (64, 64))
    """
    key, value = _sides(text, form="key=value")
    return key, literal(value.strip())


def _sides(text: str, *, form: str) -> tuple[str, str]:
    key, _, rest = text.partition("=")
    if not key or not rest:
        raise ValueError(f"{text!r}: must be {form}")
    return key, rest


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _draw(key: str, law: str, generator: random.Random) -> Any:
    found = _DRAW.fullmatch(law)
    name, listed = found.groups() if found else ("", "")
    match name, [literal(part.strip()) for part in _split(listed)]:
        case "choice", values:
            return generator.choice(values)
        case "uniform", [int() | float() as low, int() | float() as high] if low < high:
            return generator.uniform(low, high)
        case "loguniform", [int() | float() as low, int() | float() as high] if 0 < low < high:
            return math.exp(generator.uniform(math.log(low), math.log(high)))
    raise ValueError(f"draw {key}={law}: must be uniform(a, b), loguniform(a, b) with 0 < a < b, or choice(x, y)")
