"""Rows of a claim with other measurements than were published, each made by a few changes that can be written down.

A change is a list: its kind, the labels of the reported runs that it is made to, and its numbers. Runs from which
values are picked stay as they are.
"""

import json
import math
import random

SET = ("seed", "target", "budget", "step_sizes", "server", "required", "num_floats")  # not measured by anybody


def labels_of(rows):
    """The keys that are labels of some run, and others that are not measured."""
    return {part.partition("=")[0] for row in rows for part in row["run"].split(",")} | {"run", "origin", *SET}


def changed(claim, rows, changes):
    """Returns rows after these changes, in order; rows that stay as they are, are shared."""
    labels = labels_of(rows)
    judged = {id(row) for row in claim.reported(rows)}
    others = [row for row in rows if id(row) not in judged]
    rows = [row for row in rows if id(row) in judged]
    for kind, where, *numbers in changes:
        found = [i for i, row in enumerate(rows) if is_at(row, where)]
        rows = _KINDS[kind]([*rows], found, labels, *numbers)
    return [*others, *rows]


def is_at(row, where):
    """Returns whether a row has these labels."""
    return all(row.get(key) == value for key, value in where.items())


def _scale(rows, found, labels, path, part, factor):
    """Multiplies what stands at a path of keys, all of a list or its last value alone; [] is all measurements."""
    for i in found:
        rows[i] = _at(rows[i], path, labels, lambda value: scaled(value, factor, part, whole=bool(path)))
    return rows


def _set(rows, found, labels, path, place, value):
    """Sets the last value of a quantity of one run, or of all that it measured if the path is empty."""
    i = found[place % len(found)]
    rows[i] = _at(rows[i], path, labels, lambda old: _last(old, value))
    return rows


def _noise(rows, found, labels, seed, spread):
    """Multiplies all measurements of each run by a factor of its own."""
    draw = random.Random(seed)
    for i in found:
        factor = 1 + draw.gauss(0, spread)
        rows[i] = _at(rows[i], [], labels, lambda value, factor=factor: scaled(value, factor, "all"))
    return rows


def _swap(rows, found, labels, other):
    """Swaps the measurements of runs with these labels and of those with others, seed by seed."""
    others = [i for i, row in enumerate(rows) if is_at(row, other)]
    for i, j in zip(found, others, strict=False):
        keys = [key for key in rows[i].keys() & rows[j].keys() - labels if alike(rows[i][key], rows[j][key])]
        one, two = rows[i], rows[j]
        rows[i] = {**one, **{key: two[key] for key in keys}}
        rows[j] = {**two, **{key: one[key] for key in keys}}
    return rows


def _swap_keys(rows, found, labels, one, other):
    """Swaps two quantities of each run."""
    del labels
    for i in found:
        rows[i] = {**rows[i], one: rows[i][other], other: rows[i][one]}
    return rows


def _constant(rows, found, labels):
    """Gives the runs of each seed what the first of the runs with their other labels measured."""
    first = {}
    for i in found:
        at = json.dumps({key: rows[i][key] for key in sorted(labels & rows[i].keys()) if key not in _OWN})
        same = first.setdefault(at, rows[i])
        keys = [key for key in rows[i].keys() - labels if alike(rows[i][key], same.get(key))]
        rows[i] = {**rows[i], **{key: same[key] for key in keys}}
    return rows


def _drop(rows, found, labels, seeds):
    """Leaves out the runs of some seeds."""
    del labels
    gone = {i for i in found if rows[i].get("seed") in seeds}
    return [row for i, row in enumerate(rows) if i not in gone]


_KINDS = {
    "scale": _scale,
    "set": _set,
    "noise": _noise,
    "swap": _swap,
    "swap_keys": _swap_keys,
    "constant": _constant,
    "drop": _drop,
}
_OWN = ("run", "origin", "seed")


def _at(row, path, labels, change):
    if not path:
        return {key: value if key in labels else change(value) for key, value in row.items()}
    key, *rest = path
    return {**row, key: _at(row[key], rest, (), change) if rest else change(row[key])}


def _last(old, value):
    match old:
        case list():
            return [*old[:-1], _last(old[-1], value)] if old else old
        case str() | bool() | None:
            return old
        case dict():
            return {key: _last(one, value) for key, one in old.items()}
    return value


def scaled(value, factor, part="all", *, whole=False):
    """Multiplies a measurement, or the last of its values; whole numbers stay unless there are no others and they are
    asked for, since steps at which runs were evaluated are no measurement."""
    whole = whole and not _has(float, value)
    match value:
        case float():
            return value * factor
        case int() if whole and not isinstance(value, bool):
            return round(value * factor)
        case list() if part == "end":
            return [*value[:-1], scaled(value[-1], factor, part, whole=whole)] if value else value
        case list():
            return [scaled(one, factor, whole=whole) for one in value]
        case dict():
            return {key: scaled(one, factor, part, whole=whole) for key, one in value.items()}
    return value


def alike(one, other):
    """Returns whether two measurements have one shape."""
    return shape(one) == shape(other)


def shape(value):
    """The shape of a measurement: its lists, its keys, and where nothing was measured."""
    match value:
        case list():
            return [shape(one) for one in value]
        case dict():
            return {key: shape(one) for key, one in value.items()}
    return value is None


def points(claim, rows):
    """The labels of each group of reported runs that differ in their seed alone."""
    labels = labels_of(rows) - {*_OWN}
    found = {}
    for row in claim.reported(rows):
        own = {key: row[key] for key in row if key in labels and not isinstance(row[key], list | dict)}
        found.setdefault(json.dumps(own), own)
    return list(found.values())


def disturbances(claim, rows, *, seed):
    """Draws changes that are aimed at nothing: of six kinds, one after the other by the seed."""
    draw, where = random.Random(seed), points(claim, rows)
    labels = labels_of(rows)
    row = claim.reported(rows)[0]
    keys = [key for key in row if key not in labels and _has(float | int, row[key])]
    seeds = sorted({row["seed"] for row in claim.reported(rows) if "seed" in row})
    kind = ("swap", "scale", "noise", "drop", "extreme", "scale")[seed % 6]
    if kind == "swap" and len(where) > 1:
        return [["swap", *draw.sample(where, 2)]]
    if kind == "swap" and len(keys) > 1:
        return [["swap_keys", {}, *draw.sample(keys, 2)]]
    if kind in ("swap", "scale"):
        factor = draw.choice([0.5, 0.9, 0.97, 1.03, 1.1, 2.0])
        count = max(1, len(where) // draw.choice([1, 2, 3]))
        path = [draw.choice(keys)] if len(where) == 1 else []
        return [["scale", at, path, "all", factor] for at in draw.sample(where, count)]
    if kind == "noise" or (kind == "drop" and not seeds):
        return [["noise", {}, draw.randrange(10**6), draw.choice([0.002, 0.01, 0.05, 0.2])]]
    if kind == "drop" and seeds:
        at = {} if draw.random() < 0.7 else draw.choice(where)
        return [["drop", at, draw.sample(seeds, draw.randint(1, max(1, len(seeds) - 1)))]]
    how = draw.choice(["nan", "inf", "constant", "all constant"])
    if how in ("constant", "all constant"):
        return [["constant", {} if how == "all constant" else draw.choice(where)]]
    value = math.nan if how == "nan" else math.inf
    at = draw.choice(where)
    row = next(row for row in claim.reported(rows) if is_at(row, at))
    keys = [key for key in row if key not in labels and _has(float | int, row[key])]
    return [["set", at, [draw.choice(keys)], draw.randrange(100), value]]


def aims(claim, rows):
    """The changes by a factor that may be aimed at a threshold: which runs, which quantity, all of it or its end."""
    labels, where = labels_of(rows), points(claim, rows)
    shared = {}
    for at in where:
        for key, value in at.items():
            if sum(value == other.get(key) for other in where) not in (1, len(where)):
                shared.setdefault(json.dumps([key, value]), {key: value})
    for at in [{}, *shared.values(), *where]:
        row = next(row for row in claim.reported(rows) if is_at(row, at))
        for path in _paths({key: value for key, value in row.items() if key not in labels}):
            value = row
            for key in path:
                value = value[key]
            for part in ("all", "end") if isinstance(value, list) else ("all",):
                yield at, path, part


def _paths(value):
    for key, one in value.items():
        if isinstance(one, dict):
            yield from ([key, *rest] for rest in _paths(one))
        if _has(float | int, one):
            yield [key]


def _has(kind, value):
    match value:
        case list():
            return any(_has(kind, one) for one in value)
        case dict():
            return any(_has(kind, one) for one in value.values())
    return isinstance(value, kind) and not isinstance(value, bool)
