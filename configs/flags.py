"""Makes a complete, checked config from a config file and flags.

``config_flags`` of ml_collections knows only the keys that a file holds, with the types of their values. Here the
schema gives a key its type: a block can be replaced by another one with other keys, in any order of flags, a key can be
None, and an unknown key gets one line. So this module reads the flags itself, with absl's parsers.
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict

from configs import config_file, dependencies, schema
from reducers import registry
from reducers.arrivals import foreign_files
from reducers.registry import components
from runs import files
from runs.errors import ConfigError

_OVERRIDE = re.compile(r"--?config\.(?P<path>[^=]+)(=(?P<text>.*))?", re.DOTALL)


def with_files(argv: Sequence[str], *, known: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Returns a command line in which the lines of flag files replace ``--flagfile=FILE``, as in absl.

    Raises:
      ConfigError: one line, if a file cannot be read.

    >>> with_files(["train.py", "--config.seed=3"])
    ['train.py', '--config.seed=3']
    """
    try:
        return [*argv[:1], *known.read_flags_from_files(argv[1:], force_gnu=False)]
    except flags.Error as error:
        raise ConfigError(f"flagfile: {str(error).removeprefix('ERROR:: ')}") from None
    except ValueError as error:  # the file is not text, or its name has a NUL character
        raise ConfigError(
            f"flagfile: {' '.join(str(error).split())}; must be a text file of flags, one a line"
        ) from None


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates ``--config.key=value`` from all other arguments; ``--config.key value`` becomes the first form.

    >>> split(["train.py", "--config.seed", "3", "--workdir=x"])
    (['train.py', '--workdir=x'], ['--config.seed=3'])
    """
    others: list[str] = []
    overrides: list[str] = []
    rest = iter(argv)
    for argument in rest:
        if argument == "--":
            return [*others, argument, *rest], overrides
        match = _OVERRIDE.fullmatch(argument)
        if not match:
            others.append(argument)
        elif match["text"] is None:
            overrides.append(f"--config.{match['path']}={next(rest, '')}")
        else:
            overrides.append(argument)
    return others, overrides


def load(
    spec: str,
    overrides: Sequence[str] = (),
    *,
    trusted: Iterable[str] = (),
    report: Callable[[str], Any] = lambda note: None,
) -> ConfigDict:
    """Loads a config file and applies overrides to it.

    ``--config.block.name=new`` replaces the whole block by the defaults of ``new``; ``--config.train_steps=...``
    replaces the file's ``train_epochs``; every other override is checked against the schema that then holds, in any
    order of flags, whether or not the file held that key.

    Args:
      spec: path of a config file, with an optional ":variant", or of a run's ``config.json``.
      overrides: ``"--config.key=value"`` each.
      trusted: modules outside of this project that a ``config.json`` may name, beside those that overrides name.
      report: called with a line for each block or duration of the file that an override replaces.

    Returns:
      A locked, complete and valid ConfigDict.

    Raises:
      ConfigError: one line that names the key, the value and what is allowed.

    >>> load("configs/digits.py", ["--config.reducer.name=sum", "--config.seed=3"]).reducer.name
    'sum'
    """
    texts = dict(map(_parse, overrides))
    named = components.names_in([registry.literal(text) for text in texts.values()])
    values = _read(spec, trusted=[*trusted, *map(components.module_of, named)])
    config = schema.with_blocks(ConfigDict(values))
    _replace_blocks(config, texts, report)
    _replace_durations(config, texts, report)
    _override(config, texts)
    return schema.complete(config).lock()


def _read(spec: str, *, trusted: Iterable[str]) -> dict[str, Any]:
    """Executes a config file and calls its ``get_config``.

    A path that ends in .json is a run's ``config.json``, which is read instead.
    """
    path, _, variant = spec.partition(":")
    if path.endswith(".json"):
        return _saved(path, variant, trusted=trusted)
    module = config_file.execute(path)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"config={path!r}: has no function get_config")
    try:
        config = module.get_config(variant)
        if not isinstance(config, ConfigDict):
            raise ConfigError(f"get_config returned {type(config).__name__}, not a ConfigDict")
        return _values(config, "config", set())
    except ConfigError as error:
        raise ConfigError(f"config={spec!r}: {str(error).removeprefix(f'config={spec!r}: ')}") from None
    except (Exception, SystemExit) as error:  # a config is Python: anything may go wrong in it
        below = pathlib.Path(str(module.__file__)).parent
        raise ConfigError(f"config={spec!r}: {components.place(error, below=below)}") from None


def _saved(path: str, variant: str, *, trusted: Iterable[str]) -> dict[str, Any]:
    """Returns a config that a run has saved."""
    if variant:
        raise ConfigError(f"config={path!r}: the config of a run has no variant {variant!r}")
    try:
        found = files.from_json(foreign_files.content(pathlib.Path(path).expanduser()))
    except OSError as error:
        raise ConfigError(f"config={path!r}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"config={path!r}: is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"config={path!r}: must be an object, as the config.json of a run is")
    try:
        components.check_trusted(found, trusted=trusted, shipped=dependencies.SHIPPED, where=f"config={path!r}")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return found


def _values(value: Any, where: str, seen: set[int]) -> Any:
    """Returns the values of a config; raises ConfigError for references between keys, and for keys that are not str.

    A typed placeholder is a reference, too, but no other key shares it.

    Args:
      value: the config, or the value of one of its keys.
      where: the value's place, for the error.
      seen: the ids of all references so far.
    """
    if isinstance(value, config_dict.FieldReference):
        if value._ops or id(value) in seen:
            raise ConfigError(f"{where}: is a reference to another key, which no flag moves; compute it in get_config")
        seen.add(id(value))
        value = value.get()
    if isinstance(value, ConfigDict | dict):
        try:
            are_text = all(isinstance(key, str) for key in value)
        except TypeError:  # a ConfigDict sorts its keys
            are_text = False
        if not are_text:
            raise ConfigError(f"{where}: each key must be a str")
        options = {"preserve_field_references": True} if isinstance(value, ConfigDict) else {}
        return {key: _values(item, f"{where}.{key}", seen) for key, item in value.items(**options)}
    if type(value) in (list, tuple):
        return type(value)(_values(item, where, seen) for item in value)
    return value


def _parse(override: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(override)
    if not match or match["text"] is None:
        raise ConfigError(f"{override}: must be --config.key=value")
    return match["path"], match["text"]


def _replace_blocks(config: ConfigDict, texts: Mapping[str, str], report: Callable[[str], Any]) -> None:
    """Replaces each block whose name a flag changes by the new name alone, and reports the keys that are gone."""
    for block in schema.BLOCKS:
        old = config[block]
        name = texts.get(f"{block}.name")
        if name is not None and not schema.same_keys(block, old.get("name"), name):
            gone = sorted(set(old) - {"name"})
            note = f"config.{block}: {name} replaces {old.get('name')}"
            report(f"{note}; gone: {', '.join(gone)}" if gone else note)
            config[block] = ConfigDict({"name": name})


def _replace_durations(config: ConfigDict, texts: Mapping[str, str], report: Callable[[str], Any]) -> None:
    """Sets a duration in steps to None if a flag gives it in epochs, or the reverse."""
    for path, text in texts.items():
        block, dot, key = path.rpartition(".")
        other = schema.twin(key)
        if text.lower() == "none" or f"{block}{dot}{other}" in texts or block not in {"", *schema.BLOCKS}:
            continue
        holder = config[block] if block else config
        if other is not None and holder.get(other) is not None:
            report(f"config.{path}={text} replaces {other}={holder[other]}")
            with holder.ignore_type():
                holder[other] = None


def _override(config: ConfigDict, texts: Mapping[str, str]) -> None:
    """Sets the keys that flags give, each value converted to the type of the schema."""
    with config.ignore_type():  # once for all blocks, because it visits all of their values
        for path, text in texts.items():
            annotation = schema.parameter(config, path).annotation
            block, _, key = path.rpartition(".")
            holder = config[block] if block else config
            try:
                holder[key] = _value(text, annotation)
            except ValueError:
                raise ConfigError(f"config.{path}={text!r}: must be {registry.describe(annotation)}") from None


_PARSERS: dict[type, flags.ArgumentParser] = {
    bool: flags.BooleanParser(),
    int: flags.IntegerParser(),
    float: flags.FloatParser(),
}


def _value(text: str, annotation: Any) -> Any:
    """Returns the value of a flag's text; raises ValueError for an invalid number or truth value."""
    kind = registry.plain_type(annotation)
    if text.lower() == "none" and registry.is_optional(annotation):
        return None
    if kind in _PARSERS:
        return _PARSERS[kind].parse(text)
    return text if kind is str else registry.literal(text)


def parse(argv: Sequence[str], *, known: flags.FlagValues = flags.FLAGS) -> tuple[ConfigDict, list[str]]:
    """Parses a command line whose ``known`` flags include a string flag ``config``.

    Args:
      argv: the command line, the program's name first.
      known: absl's flags, perhaps with a list ``trust_module``.

    Returns:
      The config; and a line for each block or duration of the file that a flag replaced.

    Raises:
      ConfigError: if anything is wrong, also in other flags.
    """
    others, overrides = split(with_files(argv, known=known))
    try:
        positional = known(others)[1:]
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    if positional:
        raise ConfigError(f"{positional[0]!r}: is not a flag; write --flag=value")
    notes: list[str] = []
    trusted = getattr(known, "trust_module", ())
    return load(known.config, overrides, trusted=trusted, report=notes.append), notes
