"""Sweeps over any config: grids, lists in step, random draws and seeds; their runs and a table of the results."""

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs import config_file
from experiments import rows as ask
from experiments.experiment import Row, Rows, Run, Sample, Table
from reducers.registry import literal

Point = Mapping[str, Any]  # dotted key of the config -> value
_DRAW = re.compile(r"(uniform|loguniform|choice)\((.*)\)", re.DOTALL)


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
    lengths = {key: len(value) for key, value in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"zip: lists must be equally long, not {', '.join(f'{k}: {n}' for k, n in lengths.items())}")
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


def runs_of(spec: str, points: Sequence[Point], *, seeds: int = 1, flags: Mapping[str, Any] | None = None) -> list[Run]:
    """Returns a run for each point and seed; a point that sets the seed keeps it.

    >>> [run.name for run in runs_of("configs/digits.py", [{"reducer.name": "sum"}], seeds=2)]
    ['reducer.name=sum,seed=0', 'reducer.name=sum,seed=1']
    """
    found = []
    for point in points:
        for seed in [point["seed"]] if "seed" in point else range(seeds):
            overrides = {**point, "seed": seed}
            found.append(Run(labels=overrides, spec=spec, overrides=overrides, flags=flags or {}))
    return found


def name_of(spec: str, runs: Sequence[Run]) -> str:
    """Returns a name for a sweep, from its config and a hash of its points."""
    points = "\n".join(sorted(run.name for run in runs))
    stem = re.sub(r"\W+", "-", spec.removesuffix(".py").rpartition("/")[2].replace(".py:", "-"))
    return f"{stem}-{hashlib.sha256(points.encode()).hexdigest()[:8]}"


def table(rows: Rows, *, keys: Sequence[str]) -> Table:
    """Returns one row per point: mean, standard deviation and number of seeds of each quantity at the last evaluation.

    Quantities that are the same in all runs are left out. The cell of a key that a point does not set is empty.
    """
    columns = [key for key in keys if key != "seed"]
    groups: list[tuple[Point, list[Row]]] = []  # values may be lists, so that a point cannot be a key
    for row in rows:
        point: Point = {key: row[key] for key in columns if key in row}
        same = next((group for other, group in groups if other == point), None)
        if same is None:
            groups.append((point, [row]))
        else:
            same.append(row)
    lists = [key for key in (rows[0] if rows else {}) if key not in keys and isinstance(rows[0][key], list)]
    quantities = [key for key in lists if len({ask.last(row, key) for row in rows}) > 1]
    cells = []
    for point, same in groups:
        samples = [_sample([ask.last(row, quantity) for row in same]) for quantity in quantities]
        cells.append([*(str(point.get(key, "")) for key in columns), *samples])
    return Table([*columns, *(quantity.replace("_", " ") for quantity in quantities)], cells)


def _sample(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    lost = f", {len(values) - len(finite)} not finite" if len(finite) < len(values) else ""
    return (str(Sample.of(finite)) if finite else "none") + lost


def values_of(text: str) -> tuple[str, list[Any]]:
    """Parses "key=a,b,c"; commas within brackets do not separate.

    >>> values_of("model.hidden_sizes=(64,),(64,64)")
    ('model.hidden_sizes', [(64,), (64, 64)])
    """
    key, listed = _sides(text, form="key=value,value,...")
    return key, [literal(part.strip()) for part in _split(listed)]


def value_of(text: str) -> tuple[str, Any]:
    """Parses "key=value"; commas are part of the value.

    >>> value_of("model.hidden_sizes=64,64"), value_of("slurm_exclude=one,two")
    (('model.hidden_sizes', (64, 64)), ('slurm_exclude', 'one,two'))
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
    match = _DRAW.fullmatch(law)
    values = [literal(part.strip()) for part in _split(match[2])] if match else []
    numbers = len(values) == 2 and all(isinstance(value, (int, float)) for value in values)
    if match and match[1] == "choice":
        return generator.choice(values)
    if not match or not numbers or values[0] >= values[1] or (match[1] == "loguniform" and values[0] <= 0):
        raise ValueError(f"draw {key}={law}: must be uniform(a, b), loguniform(a, b) with 0 < a < b, or choice(x, y)")
    low, high = values
    if match[1] == "uniform":
        return generator.uniform(low, high)
    return math.exp(generator.uniform(math.log(low), math.log(high)))
