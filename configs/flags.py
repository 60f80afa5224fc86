"""From a config file and flags to a complete, checked config.

The flags of ``config_flags`` know the keys that a file holds, with the types of their values. Here a key's type is that
of the schema: a block can be replaced by another one with other keys, in any order of flags, a key can be None, and an
unknown key gets one line. So this module reads the flags itself, and shares with ``config_flags`` the parsers of absl.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict

from configs import config_file, schema
from reducers import components, registry
from runs.errors import ConfigError

_OVERRIDE = re.compile(r"--?(no)?config\.(?P<path>[^=]+)(=(?P<text>.*))?", re.DOTALL)


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
        elif match["text"] is None and not match[1]:
            overrides.append(f"--config.{match['path']}={next(rest, '')}")
        else:
            overrides.append(argument if match["text"] is not None else f"--config.{match['path']}=False")
    return others, overrides


def load(spec: str, overrides: Sequence[str] = (), *, report: Callable[[str], Any] = lambda note: None) -> ConfigDict:
    """Loads a config file and applies overrides to it.

    ``--config.block.name=new`` replaces the whole block by the defaults of ``new``; ``--config.train_steps=...``
    replaces the file's ``train_epochs``; every other override is checked against the schema that then holds, in any
    order of flags, whether or not the file held that key.

    Args:
      spec: path of a config file, with an optional ":variant".
      overrides: ``"--config.key=value"`` each.
      report: called with a line for each block or duration of the file that an override replaces.

    Returns:
      A locked, complete and valid ConfigDict.

    Raises:
      ConfigError: one line that names the key, the value and what is allowed.

    >>> load("configs/digits.py", ["--config.reducer.name=sum", "--config.seed=3"]).reducer.name
    'sum'
    """
    config = schema.with_blocks(_read(spec))
    texts = dict(_parse(override) for override in overrides)
    _replace_blocks(config, texts, report)
    _replace_durations(config, texts, report)
    _override(config, texts)
    _check_given(config)
    return schema.complete(config).lock()


def _read(spec: str) -> ConfigDict:
    """Executes a config file and calls its ``get_config``; the loader of ``config_flags`` is deprecated."""
    path, _, variant = spec.partition(":")
    module = config_file.execute(path)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"config={path!r}: has no function get_config")
    try:
        config = module.get_config(variant)
        if not isinstance(config, ConfigDict):
            raise ConfigError(f"get_config returned {type(config).__name__}, not a ConfigDict")
        return ConfigDict(_values(config))
    except ConfigError as error:
        raise ConfigError(f"config={spec!r}: {str(error).removeprefix(f'config={spec!r}: ')}") from None
    except (Exception, SystemExit) as error:  # a config is Python: anything may go wrong in it
        below = pathlib.Path(str(module.__file__)).parent
        raise ConfigError(f"config={spec!r}: {components.place(error, below=below)}") from None


class _Required:
    """Stands for a value that a file leaves to the flags."""

    def __repr__(self) -> str:
        return "required_placeholder"


def _values(config: ConfigDict, *, where: str = "config") -> dict[str, Any]:
    """Returns the values of a config; those of its references are computed."""
    try:
        are_text = all(isinstance(key, str) for key in config)
    except TypeError:  # a ConfigDict sorts its keys
        are_text = False
    if not are_text:
        raise ConfigError(f"{where}: each key must be a str")
    values: dict[str, Any] = {}
    for key in config:
        try:
            value = config[key]
        except config_dict.RequiredValueError:
            value = None if key == "name" else _Required()  # a block without a name is known to be wrong
        values[key] = _values(value, where=f"{where}.{key}") if isinstance(value, ConfigDict) else value
    return values


def _check_given(config: ConfigDict) -> None:
    """Refuses a config if no flag gave a value that its file leaves to the flags."""
    for block in ("", *schema.BLOCKS):
        for key, value in (config[block] if block else config).items():
            if isinstance(value, _Required):
                path = f"{block}.{key}" if block else key
                allowed = registry.describe(schema.parameter(config, path).annotation)
                raise ConfigError(f"config.{path}: missing, since the file has a {value}; must be {allowed}")


def _parse(override: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(override)
    if not match or match["text"] is None or match[1]:  # "--noconfig.key=value" has no meaning
        raise ConfigError(f"{override}: must be --config.key=value")
    return match["path"], match["text"]


def _replace_blocks(config: ConfigDict, texts: Mapping[str, str], report: Callable[[str], Any]) -> None:
    for block in schema.BLOCKS:
        old, name = config[block], texts.get(f"{block}.name")
        if name is not None and not schema.same_keys(block, old.get("name"), name):
            gone = sorted(set(old) - {"name"})
            note = f"config.{block}: {name} replaces {old.get('name')}"
            report(f"{note}; gone: {', '.join(gone)}" if gone else note)
            config[block] = ConfigDict({"name": name})


def _replace_durations(config: ConfigDict, texts: Mapping[str, str], report: Callable[[str], Any]) -> None:
    for path, text in texts.items():
        block, dot, key = path.rpartition(".")
        other = schema.twin(key)
        if (
            other is None
            or f"{block}{dot}{other}" in texts
            or text.lower() == "none"
            or block not in {"", *schema.BLOCKS}
        ):
            continue
        holder = config[block] if block else config
        if holder.get(other) is not None:
            report(f"config.{path}={text} replaces {other}={holder[other]}")
            with holder.ignore_type():
                holder[other] = None


def _override(config: ConfigDict, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        annotation = schema.parameter(config, path).annotation
        block, dot, key = path.rpartition(".")
        holder = config[block] if dot else config
        try:
            value = _value(text, annotation)
        except ValueError:
            raise ConfigError(f"config.{path}={text!r}: must be {registry.describe(annotation)}") from None
        with holder.ignore_type():
            holder[key] = value


_PARSERS: dict[type, flags.ArgumentParser] = {
    bool: flags.BooleanParser(),
    int: flags.IntegerParser(),
    float: flags.FloatParser(),
}


def _value(text: str, annotation: Any) -> Any:
    """Returns the value that a flag's text stands for; raises ValueError if it is no number or no truth value."""
    kind = registry.plain_type(annotation)
    if text.lower() == "none" and registry.is_optional(annotation):
        return None
    if kind in _PARSERS:
        return _PARSERS[kind].parse(text)
    return text if kind is str else registry.literal(text)


def parse(argv: Sequence[str], *, known: flags.FlagValues = flags.FLAGS) -> tuple[ConfigDict, list[str]]:
    """Parses a command line whose ``known`` flags include a string flag ``config``.

    Returns:
      The config; and a line for each block or duration of the file that a flag replaced.

    Raises:
      ConfigError: if anything is wrong, other flags included.
    """
    others, overrides = split(argv)
    try:
        positional = known(others)[1:]
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    if positional:
        raise ConfigError(f"{positional[0]!r}: is not a flag; write --flag=value")
    notes: list[str] = []
    return load(known.config, overrides, report=notes.append), notes
