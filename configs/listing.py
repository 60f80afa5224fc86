"""Lists the names that a config's block can have, and the keys of a config with types, ranges and defaults."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import schema
from data.sources import images
from reducers import registry
from reducers.encodings import ENCODINGS
from reducers.registry import Parameters, Registry

# The blocks of a config, and the encodings, which `communication` and some reducers hold.
KINDS: Mapping[str, Registry] = {**schema.BLOCKS, "encoding": ENCODINGS}


def kind_of(word: str) -> str:
    """Returns the kind that a word stands for, in the singular or the plural.

    Raises:
      ValueError: one line, for another word.

    >>> kind_of("reducers"), kind_of("arrivals")
    ('reducer', 'arrivals')
    """
    for kind in (word, word.removesuffix("s")):
        if kind in KINDS:
            return kind
    raise ValueError(f"kind={word!r}: {registry.suggest(word, KINDS)}")


def names_of(kind: str) -> list[str]:
    """Returns a line for each name of a kind, with the first line of its docstring.

    >>> names_of("server")[2]
    'synchronous    All workers compute gradients at the same parameters, which together make one update.'
    """
    constructors = dict(sorted(KINDS[kind].items()))
    if kind == "data":
        constructors = {"digits": images, **constructors}
    return aligned([[name, _first_line(constructor)] for name, constructor in constructors.items()])


def keys_of(kind: str, name: str) -> list[str]:
    """Returns a line about a name of a kind, and one for each of its keys: the type and range, and the default.

    Raises:
      ValueError: one line, for an unknown name.
    """
    parameters = KINDS[kind].parameters(name)
    rows = [[key, *_described(parameter)] for key, parameter in parameters.items()]
    return [_first_line(KINDS[kind].find(name)), *aligned(rows)]


def of_config(config: ConfigDict) -> list[str]:
    """Returns a line for each key of a complete config: its value, what is allowed, and the default.

    Args:
      config: complete; the keys of a block are those of its name.
    """
    rows = []
    for key, parameter in registry.parameters(schema.experiment).items():
        if key not in schema.BLOCKS:
            rows.append([f"config.{key}={config[key]!r}", *_described(parameter)])
            continue
        block = config[key]
        rows.append([f"config.{key}.name={block.name!r}", f"a name of: python -m configs list {key}", ""])
        parameters: Parameters = schema.block_parameters(key, block.name)
        rows += [[f"config.{key}.{k}={_plain(block[k])!r}", *_described(p)] for k, p in parameters.items()]
    return aligned(rows)


def _described(parameter: inspect.Parameter) -> list[str]:
    default = f"default {_plain(parameter.default)!r}"
    if parameter.default is inspect.Parameter.empty:
        default = "must be given"
    return [registry.describe(parameter.annotation), default]


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigDict):
        return value.to_dict()
    return dict(value) if isinstance(value, Mapping) else value


def _first_line(constructor: Any) -> str:
    return (inspect.getdoc(constructor) or "").partition("\n")[0]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines, their columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return lines
