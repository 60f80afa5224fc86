"""Executes a config file as a module, so that the config may name components of the file and of modules beside it.

The file's folder is an entry of ``sys.path``, the last one: a module beside the config never hides an installed one.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from reducers.registry import components
from runs.errors import ConfigError


class _Executed(NamedTuple):
    """The folder of the config that was executed last.

    Attributes:
      name: name of the config's module.
      folder: the folder, as an entry of ``sys.path``.
      was_added: whether ``execute`` added the folder to ``sys.path``.
      loaded: top-level modules that were imported before the config.
    """

    name: str
    folder: Path
    was_added: bool
    loaded: frozenset[str]


_LAST: list[_Executed] = []  # at most one


def execute(path: str) -> ModuleType:
    """Executes a config file anew; on ``sys.path`` its folder replaces that of the previous config.

    The module is importable by its file's name, unless another module has this name, so that the config may name
    components that the file defines. Modules from the previous config's folder are forgotten.

    Args:
      path: the file.

    Raises:
      ConfigError: one line, if there is no such file, or if it fails.

    >>> execute("configs/digits.py").get_config("smoke").num_workers
    8
    """
    file = Path(os.path.expanduser(path)).absolute()
    if file.suffix != ".py":
        raise ConfigError(f"config={path!r}: must be a Python file, or the config.json of a run")
    if not file.is_file():
        raise ConfigError(f"config={path!r}: no such file")
    _forget()
    importlib.invalidate_caches()  # Python may have listed the folder before the file was written
    name = _name_of(file)
    was_added = str(file.parent) not in sys.path
    _LAST.append(_Executed(name, file.parent, was_added, frozenset(name.partition(".")[0] for name in sys.modules)))
    if was_added:
        sys.path.append(str(file.parent))
    loader = _Uncached(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a config is Python: anything may go wrong in it
        del sys.modules[name]
        raise ConfigError(f"config={path!r}: {components.place(error, below=file.parent)}") from None
    return module


def executed() -> str | None:
    """Returns the name of the module of the config that was executed last; None if there was none."""
    return _LAST[-1].name if _LAST else None


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is now; cached bytecode could be that of an older file with the same size and second."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError(f"{path}: has no use for bytecode")


def _name_of(file: Path) -> str:
    """Returns the name under which a config file becomes a module: its own, unless that is another module's."""
    name = file.stem
    if name.isidentifier() and not name.startswith("__") and name not in sys.builtin_module_names:
        loaded = getattr(sys.modules.get(name), "__file__", "") if name in sys.modules else None
        found = importlib.machinery.PathFinder.find_spec(name)
        other = loaded if loaded is not None else found.origin if found is not None else None
        if other is None or (other and Path(other).resolve() == file.resolve()):
            return name
    return "config_" + re.sub(r"\W", "_", name)


def _forget() -> None:
    """Takes the folder of the previous config from ``sys.path``, and forgets the modules that came from there."""
    while _LAST:
        _, folder, was_added, loaded = _LAST.pop()
        if was_added and str(folder) in sys.path:
            sys.path.remove(str(folder))
        later = {name: name.partition(".")[0] for name in sys.modules if name.partition(".")[0] not in loaded}
        from_there = set()  # top-level modules, some of which may be folders without a file of their own
        for name, top in later.items():
            path = getattr(sys.modules[name], "__file__", None) or ""
            if path == f"{folder}/{top}.py" or path.startswith(f"{folder}/{top}/"):
                from_there.add(top)
        for name, top in later.items():
            if top in from_there:
                del sys.modules[name]
