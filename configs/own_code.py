"""The code of a config's own components, which is part of a run's identity: files and their hashes.

A component is a constructor of another module than this project's, such as ``{"name": "my_module:ViT"}``. The code of a
run is the text of every module of one's own that is loaded: of every module outside of this project and of installed
packages.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs import config_file, schema
from reducers.registry import components
from runs.environment import Code
from runs.errors import ROOT, is_installed

# The modules and packages of this project.
ROOMS = frozenset(
    {
        *("asynchronous", "benchmarks", "configs", "conftest", "data", "docs", "experiments", "launch", "live"),
        *("models", "optim", "parallel", "planning", "reducers", "runs", "tensor_parallel", "tests", "train"),
        "training",
    }
)

SHIPPED = frozenset(constructor for registry in schema.BLOCKS.values() for constructor in registry.values())


def describe(config: Mapping[str, Any]) -> Code:
    """Returns the modules of one's own that are loaded, with their hashes; none if the config names none of them.

    The config file itself counts only if the config names what it defines: a run may go on from its config.json.

    Args:
      config: complete and valid, so that all modules that it names are imported.

    Raises:
      ValueError: one line, if a file has the same name as another module, or cannot be read.

    >>> from configs import flags
    >>> describe(flags.load("configs/digits.py"))
    {}
    """
    named = modules_of(config)
    if not any(_file_of(name) for name in named):
        return {}
    loaded = {*sys.modules} - {"__main__", "__mp_main__", config_file.executed()}
    files = {name: file for name in sorted(loaded | named) if (file := _file_of(name))}
    return {name: {"path": str(file), "sha256": _sha256(file)} for name, file in files.items()}


def modules_of(config: Mapping[str, Any]) -> set[str]:
    """Returns the modules outside of this project whose constructors a config names, in blocks inside blocks, too."""
    named = {components.module_of(name) for name in components.names_in(config)}
    # A config file may also have put its constructors into a registry, under names without a module.
    found = (schema.BLOCKS[block].find(config[block]["name"]) for block in schema.BLOCKS)
    registered = {getattr(constructor, "__module__", "") for constructor in found if constructor not in SHIPPED}
    return {name for name in named | registered if name in sys.modules}


def _file_of(name: str) -> Path | None:
    """Returns the file of a loaded module of one's own; None for other modules, and for those without a file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or is_installed(path := Path(file).absolute()):
        return None
    inside = path.resolve()
    is_ours = inside.is_relative_to(ROOT) and inside.relative_to(ROOT).parts[0].removesuffix(".py") in ROOMS
    return None if is_ours or not path.is_file() else path


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"{str(file)!r}: cannot be read ({error.strerror})") from None
