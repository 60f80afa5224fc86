"""A config file, executed as a module, so that it and the modules beside it may define what the config names.

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


class _Beside(NamedTuple):
    """The folder of the config that was executed last.

    Attributes:
      name: of the config's module.
      folder: as an entry of ``sys.path``.
      was_added: whether it is one because of the config.
      loaded: top-level modules that were imported before the config.
    """

    name: str
    folder: Path
    was_added: bool
    loaded: frozenset[str]


_BESIDE: list[_Beside] = []  # at most one


def execute(path: str) -> ModuleType:
    """Executes a config file anew, and puts its folder on ``sys.path`` in the place of the previous config's.

    The module is importable by the name of its file, so that the config may name what the file itself defines; unless
    another module has this name. Modules from the folder of the previous config are imported anew.

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
    importlib.invalidate_caches()  # files may be as new as the listing of their folder
    name = _name_of(file)
    was_added = str(file.parent) not in sys.path
    _BESIDE.append(_Beside(name, file.parent, was_added, frozenset(name.partition(".")[0] for name in sys.modules)))
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
    return _BESIDE[-1].name if _BESIDE else None


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is now: bytecode of an older file with the same size and second would pass for it."""

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
    while _BESIDE:
        _, folder, was_added, loaded = _BESIDE.pop()
        if was_added and str(folder) in sys.path:
            sys.path.remove(str(folder))
        later = {name: name.partition(".")[0] for name in sys.modules if name.partition(".")[0] not in loaded}
        from_there = set()  # top-level modules, some of which may be folders without a file of their own
        below = os.path.join(folder, "")
        for name, top in later.items():
            path = getattr(sys.modules[name], "__file__", None) or ""
            if not path.startswith(below):  # of thousands of modules nearly all, which paths would take long to compare
                continue
            file = Path(path)
            if file == folder / f"{top}.py" or file.is_relative_to(folder / top):
                from_there.add(top)
        for name in [name for name, top in later.items() if top in from_there]:
            del sys.modules[name]
