"""Lists the names that a config's block can have, and the keys of a config: types, ranges, defaults and meanings.

The meaning of a key is what the docstring of its constructor says about it.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import schema
from data.sources import images
from optim import factors
from reducers import registry
from reducers.encodings import ENCODINGS
from reducers.registry import Parameters, Registry

_SECTIONS = re.compile(r"^(?:Args|Attributes|Keyword Args):\n((?: .*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"(?P<names>\**\w+(?:, \w+)*)(?: \([^)]*\))?: ?(?P<meaning>.*)")
_MARKUP = re.compile(r"(?::\w+:)?`+")
_ELSEWHERE = re.compile(r"see ``(\w+)``")

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
    """Returns a line about a name of a kind, and two for each of its keys: type, range and default, and its meaning.

    Raises:
      ValueError: one line, for an unknown name.

    >>> print(*keys_of("arrivals", "pareto")[1:3], sep="\\n")
    least_seconds  float in (0, inf)  default 1.0
        m, the least time of a worker in a step.
    """
    constructor = KINDS[kind].find(name)
    parameters = KINDS[kind].parameters(name)
    rows = [[key, *_described(parameter)] for key, parameter in parameters.items()]
    return [_first_line(constructor), *_with_meanings(rows, meanings(constructor, parameters))]


def of_config(config: ConfigDict) -> list[str]:
    """Returns two lines for each key of a complete config: value, what is allowed and default, and its meaning.

    Args:
      config: complete; the keys of a block are those of its name.
    """
    rows: list[list[str]] = []
    meant: list[str] = []
    parameters = registry.parameters(schema.experiment)
    of_experiment = meanings(schema.experiment, parameters)
    for (key, parameter), meaning in zip(parameters.items(), of_experiment, strict=True):
        meant.append(meaning)
        if key not in schema.BLOCKS:
            rows.append([f"config.{key}={config[key]!r}", *_described(parameter)])
            continue
        block = config[key]
        rows.append([f"config.{key}.name={block.name!r}", f"a name of: python -m configs list {key}", ""])
        of_block: Parameters = schema.block_parameters(key, block.name)
        rows += [[f"config.{key}.{k}={_plain(block[k])!r}", *_described(p)] for k, p in of_block.items()]
        meant += meanings(schema.BLOCKS[key].find(block.name), of_block)
    return _with_meanings(rows, meant)


def meanings(constructor: Any, parameters: Parameters) -> list[str]:
    """Returns what the docstring of a constructor says about each parameter, in one line; "" where it says nothing.

    A length in epochs that is not documented means what the same length in steps does.
    """
    found = _documented(constructor)
    lengths = {factors.in_epochs(key): f"{key} in epochs." for key in found}
    return [found.get(key, lengths.get(key, "")) for key in parameters]


def _documented(constructor: Any) -> dict[str, str]:
    """Returns parameter -> meaning, for all that a docstring has an entry for.

    A class inherits entries of its bases. For options that are passed on, as in "**options: see ``from_gram``", it is
    the docstring of that function that counts.
    """
    found: dict[str, str] = {}
    for documented in reversed(inspect.getmro(constructor)) if inspect.isclass(constructor) else [constructor]:
        for names, meaning in _entries(inspect.getdoc(documented) or ""):
            if names.startswith("*"):
                namespace = getattr(inspect.unwrap(constructor), "__globals__", {})
                passed_on = [namespace[name] for name in _ELSEWHERE.findall(meaning) if name in namespace]
                found |= {key: text for function in passed_on for key, text in _documented(function).items()}
            else:
                found |= dict.fromkeys(names.split(", "), meaning)
    return found


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the meaning of each entry of a docstring's sections about parameters."""
    for section in _SECTIONS.findall(docstring + "\n"):
        for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section)):
            if match := _ENTRY.fullmatch(" ".join(entry.split())):
                yield match["names"], match["meaning"]


def _described(parameter: inspect.Parameter) -> list[str]:
    default = f"default {_plain(parameter.default)!r}"
    if parameter.default is inspect.Parameter.empty:
        default = "must be given"
    return [registry.describe(parameter.annotation), default]


def _with_meanings(rows: Sequence[Sequence[str]], meant: Sequence[str]) -> list[str]:
    """Returns rows as aligned lines, each followed by its meaning, if it has one."""
    lines = []
    for row, meaning in zip(aligned(rows), meant, strict=True):
        lines += [row, f"    {_MARKUP.sub('`', meaning)}"] if meaning else [row]
    return lines


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
