"""From a file and flags to a complete, checked config; before ``config_flags`` and around it."""

import ast
import importlib.util
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import annotations, schema
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


def load(spec: str, overrides: Sequence[str] = (), *, tell: Callable[[str], Any] = lambda note: None) -> ConfigDict:
    """Loads a config file and applies overrides to it.

    ``--config.block.name=new`` replaces the whole block by the defaults of ``new``; ``--config.train_steps=...``
    replaces the file's ``train_epochs``; every other override is checked against the schema that then holds, in any
    order of flags, whether or not the file held that key.

    Args:
      spec: path of a config file, with an optional ":variant".
      overrides: ``"--config.key=value"`` each.
      tell: called with a line for every key of the file that an override made go.

    Returns:
      A locked, complete and valid ConfigDict.

    Raises:
      ConfigError: one line that names the key, the value and what is allowed.

    >>> load("configs/digits.py", ["--config.reducer.name=sum", "--config.seed=3"]).reducer.name
    'sum'
    """
    config = _read(spec)
    texts = dict(_parse(override) for override in overrides)
    _replace_blocks(config, texts, tell)
    _replace_durations(config, texts, tell)
    config = schema.complete(config, promised=texts)
    _check_paths(config, texts)
    config = _override(config, texts)
    schema.validate(config)
    return config.lock()


def _read(spec: str) -> ConfigDict:
    """Runs a config file's ``get_config``; config_flags would do it with a deprecated loader."""
    path, _, variant = spec.partition(":")
    found = importlib.util.spec_from_file_location(f"config_{pathlib.Path(path).stem}", path)
    try:
        if found is None or found.loader is None:
            raise ConfigError(f"config={path!r}: must be a Python file")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        config = module.get_config(variant)
    except FileNotFoundError:
        raise ConfigError(f"config={path!r}: no such file") from None
    except ConfigError as error:
        raise ConfigError(f"config={spec!r}: {str(error).removeprefix(f'config={spec!r}: ')}") from None
    except (Exception, SystemExit) as error:  # a config is Python: anything may go wrong in it
        raise ConfigError(f"config={spec!r}: {type(error).__name__}: {_one_line(error)}") from None
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"config={spec!r}: get_config returned {type(config).__name__}, not a ConfigDict")
    return config


def _parse(override: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(override)
    if not match or match["text"] is None:
        raise ConfigError(f"{override}: must be --config.key=value")
    return match["path"], match["text"]


def _replace_blocks(config: ConfigDict, texts: dict[str, str], tell: Callable[[str], Any]) -> None:
    for block in schema.BLOCKS:
        name = texts.get(f"{block}.name")
        old = config.get(block)
        if name is None or not isinstance(old, ConfigDict):
            continue
        if not schema.same_keys(block, old.get("name"), name):
            gone = sorted(set(old) - {"name"})
            tell(f"config.{block}: {name} replaces {old.get('name')}" + (f"; gone: {', '.join(gone)}" if gone else ""))
            with config.unlocked():
                config[block] = ConfigDict({"name": name})


def _replace_durations(config: ConfigDict, texts: dict[str, str], tell: Callable[[str], Any]) -> None:
    for path, text in texts.items():
        *parents, key = path.split(".")
        other = schema.twin(key)
        holder = config.get(parents[0]) if len(parents) == 1 else config if not parents else None
        if other is None or ".".join([*parents, other]) in texts or text.lower() == "none":
            continue
        if isinstance(holder, ConfigDict) and holder.get(other) is not None:
            tell(f"config.{path}={text} replaces {other}={holder[other]}")
            with holder.unlocked(), holder.ignore_type():
                holder[other] = None


def _check_paths(config: ConfigDict, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        head, dot, key = path.partition(".")
        if head not in config:
            raise ConfigError(schema.unknown(f"config.{head}", [f"config.{k}" for k in config]))
        if not dot and head in schema.BLOCKS:
            raise ConfigError(f"config.{head}={text!r}: is a block; set config.{head}.name and its other keys")
        if dot and head not in schema.BLOCKS:
            raise ConfigError(f"config.{path}: unknown key; config.{head} is not a block")
        if dot and key not in config[head]:
            raise ConfigError(schema.unknown(f"config.{path}", [f"config.{head}.{k}" for k in config[head]]))


def _override(config: ConfigDict, texts: dict[str, str]) -> ConfigDict:
    """Parses each text to its key's type; ``config_flags`` does it, but for None and for values of any type."""
    rest = []
    for path, text in texts.items():
        parameter = _parameter(config, path)
        holder, key = _holder(config, path)
        if text.lower() == "none" and parameter is not None and annotations.is_optional(parameter.annotation):
            holder[key] = None
        elif parameter is not None and annotations.plain_type(parameter.annotation) in (object, tuple, dict):
            with holder.ignore_type():
                holder[key] = _literal(text)
        else:
            rest.append(path)
    for path in rest:
        argv = ["", f"--config.{path}={texts[path]}"]
        values = flags.FlagValues()
        config_flags.DEFINE_config_dict("config", config, flag_values=values, lock_config=False, sys_argv=argv)
        try:
            values(argv)
            config = values.config
        except (flags.Error, ValueError, TypeError):
            parameter = _parameter(config, path)
            allowed = annotations.describe(parameter.annotation) if parameter else "str"
            raise ConfigError(f"config.{path}={texts[path]!r}: must be {allowed}") from None
    return config


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text
    return tuple(value) if isinstance(value, list) else value


def _holder(config: ConfigDict, path: str) -> tuple[ConfigDict, str]:
    head, _, key = path.partition(".")
    return (config[head], key) if key else (config, head)


def _parameter(config: ConfigDict, path: str):
    head, _, key = path.partition(".")
    if not key:
        return schema.parameters(schema.experiment).get(head)
    return schema.block_parameters(head, config[head]["name"]).get(key)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def parse(argv: Sequence[str], *, known: flags.FlagValues = flags.FLAGS) -> tuple[ConfigDict, list[str]]:
    """Parses a command line whose ``known`` flags include a string flag ``config``.

    Returns:
      The config; and what flags made go from it, a line each, to be shown once nothing is left to refuse.

    Raises:
      ConfigError: for anything wrong, the flags of absl included.
    """
    others, overrides = split(argv)
    try:
        positional = known(others)[1:]
    except flags.Error as error:
        raise ConfigError(_one_line(error)) from None
    if positional:
        raise ConfigError(f"{positional[0]!r}: is no flag; everything is --flag=value")
    notes: list[str] = []
    return load(known.config, overrides, tell=notes.append), notes
