"""From a config file and flags to a complete, checked config.

The flags of ``config_flags`` know the keys that a file holds, with the types of their values. Here a key's type is that
of the schema: a block can be replaced by another one with other keys, in any order of flags, a key can be None, and an
unknown key gets one line. So this module reads the flags itself, and shares with ``config_flags`` the parsers of absl.
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict

from configs import config_file, own_code, schema
from reducers import registry
from reducers.arrivals import foreign_files
from reducers.registry import components
from runs import files
from runs.errors import ConfigError

_OVERRIDE = re.compile(r"--?(no)?config\.(?P<path>[^=]+)(=(?P<text>.*))?", re.DOTALL)


def with_files(argv: Sequence[str], *, known: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Returns a command line with the lines of its flag files in the place of ``--flagfile=FILE``, as absl has it.

    Raises:
      ConfigError: one line, if a file cannot be read.

    >>> with_files(["train.py", "--config.seed=3"])
    ['train.py', '--config.seed=3']
    """
    try:
        return [*argv[:1], *known.read_flags_from_files(argv[1:], force_gnu=False)]
    except flags.Error as error:
        raise ConfigError(f"flagfile: {str(error).removeprefix('ERROR:: ')}") from None
    except ValueError as error:  # the file is no text, or its name has a NUL character
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
        elif match["text"] is None and not match[1]:
            overrides.append(f"--config.{match['path']}={next(rest, '')}")
        else:
            overrides.append(argument if match["text"] is not None else f"--config.{match['path']}=False")
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
      spec: path of a config file, with an optional ":variant"; or of the ``config.json`` of a run.
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
    file, values = _read(spec, trusted=[*trusted, *map(components.module_of, named)])
    config = schema.with_blocks(ConfigDict(values))
    _replace_blocks(config, texts, report)
    _replace_durations(config, texts, report)
    _override(config, texts)
    _follow_references(file, values, config, texts, report)
    _check_given(config)
    return schema.complete(config).lock()


def _read(spec: str, *, trusted: Iterable[str]) -> tuple[ConfigDict, dict[str, Any]]:
    """Executes a config file and calls its ``get_config``; the loader of ``config_flags`` is deprecated.

    A file that ends in .json is the ``config.json`` of a run.

    Returns:
      The file's config, with its references; and its values.
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
        return config, _values(config)
    except ConfigError as error:
        raise ConfigError(f"config={spec!r}: {str(error).removeprefix(f'config={spec!r}: ')}") from None
    except (Exception, SystemExit) as error:  # a config is Python: anything may go wrong in it
        below = pathlib.Path(str(module.__file__)).parent
        raise ConfigError(f"config={spec!r}: {components.place(error, below=below)}") from None


def _saved(path: str, variant: str, *, trusted: Iterable[str]) -> tuple[ConfigDict, dict[str, Any]]:
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
        components.check_trusted(found, trusted=trusted, shipped=own_code.SHIPPED, where=f"config={path!r}")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return ConfigDict(found), found


class _Required:
    """Stands for a value that a file leaves to the flags."""

    def __repr__(self) -> str:
        return "required_placeholder"


class _Lost(_Required):
    """Stands for a value that refers to a key which the flags have taken away."""

    def __repr__(self) -> str:
        return "reference to a key that the flags take away"


def _values(config: ConfigDict, *, where: str = "config") -> dict[str, Any]:
    """Returns the values of a config; those of its references are computed, also in lists and tuples."""
    try:
        are_text = all(isinstance(key, str) for key in config)
    except TypeError:  # a ConfigDict sorts its keys
        are_text = False
    if not are_text:
        raise ConfigError(f"{where}: each key must be a str")
    values: dict[str, Any] = {}
    for key in config:
        try:
            values[key] = _computed(config[key], where=f"{where}.{key}")
        except config_dict.RequiredValueError:
            values[key] = None if key == "name" else _Required()  # a block without a name is known to be wrong
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{where}.{key}: its reference has no value ({type(error).__name__}: {error})") from None
    return values


def _computed(value: Any, *, where: str) -> Any:
    if isinstance(value, config_dict.FieldReference):
        return _computed(value.get(), where=where)
    if isinstance(value, ConfigDict):
        return _values(value, where=where)
    if type(value) in (list, tuple):
        return type(value)(_computed(item, where=where) for item in value)
    if type(value) is dict:
        return {key: _computed(item, where=where) for key, item in value.items()}
    return value


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
    with config.ignore_type():  # once for all blocks: it looks at every value of them
        for path, text in texts.items():
            annotation = schema.parameter(config, path).annotation
            block, dot, key = path.rpartition(".")
            try:
                value = _value(text, annotation)
            except ValueError:
                raise ConfigError(f"config.{path}={text!r}: must be {registry.describe(annotation)}") from None
            holder = config[block] if dot else config
            holder[key] = value


def _follow_references(
    file: ConfigDict,
    values: Mapping[str, Any],
    config: ConfigDict,
    texts: Mapping[str, str],
    report: Callable[[str], Any],
) -> None:
    """Computes the file's references again from the values that flags gave, and sets the keys that follow.

    The flags' values are set in the file's own ConfigDict, which defines what a reference to each key means. Where a
    flag has taken a key away, with its block or as the other form of a duration, a reference to it has no value.
    """
    if not _has_references(file):
        return
    for path, _ in _leaves(values):
        value = _get(config, path, default=_GONE)
        if path in texts:
            _set(file, path, value)
        elif value is _GONE or (value is None and _get(values, path) is not None):
            _set(file, path, config_dict.required_placeholder(object))
    for path, value in _leaves(_values(file)):
        before, now = _get(values, path, default=_GONE), _get(config, path, default=_GONE)
        if path in texts:
            if not _same(value, now):
                raise ConfigError(
                    f"config.{path}={now!r}: the file ties it to another key, which a flag sets to {value!r}"
                )
        elif now is not _GONE and _same(now, before) and not _same(value, before):
            _set(config, path, _Lost() if isinstance(value, _Required) else value)
            if not isinstance(value, _Required):
                report(f"config.{path}={value!r} follows from the flags, by a reference in the file")


_GONE = object()


def _has_references(value: Any) -> bool:
    if isinstance(value, ConfigDict):
        value = dict(value.items(preserve_field_references=True))
    if isinstance(value, dict | list | tuple):
        return any(map(_has_references, value.values() if isinstance(value, dict) else value))
    return isinstance(value, config_dict.FieldReference)


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the keys that a flag can set, with their values: those of the config, and those of its blocks."""
    for key, value in values.items():
        if key not in schema.BLOCKS or not isinstance(value, Mapping):
            yield key, value
        else:
            yield from ((f"{key}.{inner}", value[inner]) for inner in value)


def _get(values: Any, path: str, *, default: Any = None) -> Any:
    head, dot, key = path.partition(".")
    holder = values.get(head, {}) if dot else values
    return holder.get(key if dot else head, default)


def _set(config: ConfigDict, path: str, value: Any) -> None:
    head, dot, key = path.partition(".")
    holder = config[head] if dot else config
    with config.ignore_type(), holder.ignore_type():
        holder[key if dot else head] = value


def _same(one: Any, other: Any) -> bool:
    """Compares values of which one may have become a list, a ConfigDict or a _Required."""
    one, other = (_computed(value, where="config") for value in (one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (isinstance(one, _Required) and isinstance(other, _Required))


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


def parse(
    argv: Sequence[str],
    *,
    known: flags.FlagValues = flags.FLAGS,
) -> tuple[ConfigDict, list[str]]:
    """Parses a command line whose ``known`` flags include a string flag ``config``.

    Args:
      argv: the command line, the program's name first.
      known: absl's flags, perhaps with a list ``trust_module``.

    Returns:
      The config; and a line for each block or duration of the file that a flag replaced.

    Raises:
      ConfigError: if anything is wrong, other flags included.
    """
    others, overrides = split(with_files(argv, known=known))
    try:
        positional = known(others)[1:]
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    if positional:
        raise ConfigError(f"{positional[0]!r}: is not a flag; write --flag=value")
    notes: list[str] = []
    trusted = known["trust_module"].value or () if "trust_module" in known else ()
    return load(known.config, overrides, trusted=trusted, report=notes.append), notes
