"""The files outside of this repository that a run depends on: the user's own code, and files that its config names.

They are part of a run's identity. A user's own modules are those outside of this project and of installed packages. If
the config names a constructor of one of them, such as ``{"name": "my_module:ViT"}``, the code of the run is the text of
all of them that are loaded.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs import config_file, schema
from reducers.arrivals import foreign_files
from reducers.registry import components
from runs.environment import INPUT, Code
from runs.errors import ROOT, is_installed

# The modules and packages of this project.
ROOMS = frozenset(
    {
        *("asynchronous", "benchmarks", "compilers", "configs", "conftest", "data", "docs", "experiments"),
        *("launch", "live", "models", "optim", "parallel", "planning", "reducers", "runs", "tensor_parallel"),
        *("syncsum", "tests", "train", "training"),
    }
)

SHIPPED = frozenset(constructor for registry in schema.BLOCKS.values() for constructor in registry.values())


def describe(config: Mapping[str, Any]) -> Code:
    """Returns the files that a run depends on, with their hashes: modules by name, and other files by their key.

    The config file itself counts only if the config names a component that it defines: a run may go on from its
    config.json. Data sets do not count, since their source has its own fingerprint. Neither does the checkpoint of
    ``config.init_from``: a run reads it once, and records it then.

    Args:
      config: complete and valid, so that all modules that it names are imported.

    Raises:
      ValueError: one line, if a file cannot be read.

    >>> from configs import flags
    >>> describe(flags.load("configs/digits.py"))
    {}
    """
    files = _own_modules(config) | {f"{INPUT}{key}": path for key, path in _named_files(config)}
    found = {}
    for key, path in files.items():
        try:
            found[key] = {"path": str(path), "sha256": foreign_files.sha256(path)}
        except FileNotFoundError:  # the component that needs it reports it
            continue
        except OSError as error:
            raise ValueError(f"{key}={str(path)!r}: cannot be read ({error.strerror})") from None
    return found


def modules_of(config: Mapping[str, Any]) -> set[str]:
    """Returns the modules outside of this project whose constructors a config names, in blocks inside blocks, too."""
    named = {components.module_of(name) for name in components.names_in(config)}
    # A config file may also have put its constructors into a registry, under names without a module.
    for block, registry in schema.BLOCKS.items():
        constructor = registry.find(config[block]["name"])
        if constructor not in SHIPPED:
            named.add(getattr(constructor, "__module__", ""))
    return named & sys.modules.keys()


def _own_modules(config: Mapping[str, Any]) -> dict[str, Path]:
    """Returns the files of the user's own modules that are loaded; none if the config names none of them."""
    named = modules_of(config)
    if not any(_file_of(name) for name in named):
        return {}
    loaded = {*sys.modules} - {"__main__", "__mp_main__", config_file.executed()}
    return {name: file for name in sorted(loaded | named) if (file := _file_of(name))}


def _file_of(name: str) -> Path | None:
    """Returns the file of a loaded module of the user's own; None for other modules, and for those without a file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or is_installed(path := Path(file).absolute()):
        return None
    inside = path.resolve()
    is_ours = inside.is_relative_to(ROOT) and inside.relative_to(ROOT).parts[0].removesuffix(".py") in ROOMS
    return None if is_ours or not path.is_file() else path


def _named_files(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yields the key and path of each file that the config names: recorded times and orders of arrival."""
    for key, block in _blocks(config):
        if block["name"] == "trace" and isinstance(block.get("path"), str):
            yield f"{key}.path", Path(block["path"])
    server = config["server"]
    if isinstance(server.get("order"), str):
        yield "server.order", Path(server["order"])


def _blocks(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the blocks with a name, and the blocks inside them, each with its key."""
    if hasattr(tree, "keys"):  # a ConfigDict is not a Mapping
        if "name" in tree:
            yield key, tree
        for name in tree:
            yield from _blocks(tree[name], f"{key}.{name}" if key else name)
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from _blocks(value, f"{key}[{i}]")
