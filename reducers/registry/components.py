"""Components outside of this project: constructors that a config names as ``module:attribute``.

A module is found as by ``import``: on ``sys.path``. A name of two different files there is refused, because ``import``
would silently take the first one, or the one that was imported before.
"""

import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reducers.registry.suggestions import suggest

_NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def is_component(name: Any) -> bool:
    """Returns whether a name has the form ``module:attribute``.

    >>> is_component("my_lab.models:ViT"), is_component("mean"), is_component("mnist:3.0.1")
    (True, False, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def module_of(name: str) -> str:
    """Returns the module of a component.

    >>> module_of("my_lab.models:ViT")
    'my_lab.models'
    """
    return name.partition(":")[0]


def names_in(tree: Any) -> list[str]:
    """Returns the names of components in nested mappings and sequences, in order.

    >>> names_in({"reducer": {"name": "stale", "combine": {"name": "mine:top_k"}}})
    ['mine:top_k']
    """
    if hasattr(tree, "keys"):  # a ConfigDict is not a Mapping
        tree = [tree[key] for key in tree]
    if isinstance(tree, list | tuple):
        return [name for value in tree for name in names_in(value)]
    return [tree] if is_component(tree) else []


def check_trusted(tree: Any, *, trusted: Iterable[str], shipped: Iterable[Callable], where: str) -> None:
    """Makes sure that a file from elsewhere names only code that this project ships or the user trusts.

    Nothing is imported.

    Args:
      tree: what the file holds.
      trusted: modules and packages that the user has named.
      shipped: constructors of this project, which are imported.
      where: the file, for the error.

    Raises:
      ValueError: one line that names the module which would run.
    """
    known = tuple(f"{module}." for module in trusted)
    for name in sorted(names_in(tree)):
        module, attribute = name.split(":")
        found = getattr(sys.modules.get(module), attribute, None)
        if not f"{module}.".startswith(known) and not any(found is constructor for constructor in shipped):
            raise ValueError(
                f"{where}: names {name!r}, so the module {module!r} would run; give --trust_module={module} if you "
                "trust it"
            )


def find(name: str) -> Callable[..., Any]:
    """Returns the function or class that ``module:attribute`` names; imports the module if it is not imported yet.

    Raises:
      ValueError: one line, if there is no such module or attribute, if the module fails, or if several files have its
        name.

    >>> find("reducers.sums.mean:maen")
    Traceback (most recent call last):
    ValueError: reducers.sums.mean has no 'maen'; did you mean 'mean'?
    """
    module_name, attribute = name.split(":")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
        public = [key for key in own if callable(vars(module)[key]) and not key.startswith("_")]
        raise ValueError(f"{module_name} has no {attribute!r}; {suggest(attribute, public)}")
    if not callable(found):
        raise ValueError(f"must be a function or a class, not {type(found).__name__}")
    try:
        signature(found)
    except Exception as error:  # annotations are code, in which anything may go wrong
        raise ValueError(f"has a signature that cannot be read ({type(error).__name__}: {error})") from None
    return found


def signature(constructor: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a constructor, with its annotations as types.

    A class whose metaclass passes on all arguments, as that of flax's ``nnx.Module`` does, has that of ``__init__``.
    """
    if inspect.isclass(constructor) and type(constructor).__call__ is not type.__call__:
        constructor = functools.partial(constructor.__init__, None)
    return inspect.signature(constructor, eval_str=True)


def _import(name: str) -> Any:
    file = file_of(name)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(place(error, below=None if file is None else file.parent)) from None
    top = name.partition(".")[0]
    if file is not None:
        raise ValueError(f"{str(file)!r} cannot be imported, because {top!r} is {_loaded(top)}; rename one of them")
    folders = [folder for folder in sys.path if not {"site-packages", "dist-packages"} & set(Path(folder).parts)]
    near = {module.name for module in pkgutil.iter_modules(folders)} - sys.stdlib_module_names
    hint = suggest(name, near)
    found = f"; {hint}" if hint.startswith("did you mean") else ""
    raise ValueError(f"no module {name!r} beside the config or on PYTHONPATH{found}")


def file_of(module: str) -> Path | None:
    """Returns the source file that ``import`` takes for a module, or None if it has none; imports nothing.

    Raises:
      ValueError: one line, if several files have this name.
    """
    path = Path(*module.split("."))
    parts = (path.with_suffix(".py"), path / "__init__.py")
    files = [Path(folder, part) for folder in sys.path for part in parts]
    found = [file.resolve() for file in files if file.is_file()]
    loaded = _loaded(module)
    if module != "__main__" and loaded is not None:
        found.insert(0, Path(loaded).resolve())
    if len(several := list(dict.fromkeys(found))) > 1:
        raise ValueError(f"{module!r} is {str(several[0])!r}, and {str(several[1])!r} has the same name; rename yours")
    return found[0] if found else None


def _loaded(module: str) -> str | None:
    """Returns the file of a module that was imported; None if it has no file, or was not imported."""
    return getattr(sys.modules.get(module), "__file__", None)


def place(error: BaseException, *, below: Path | None) -> str:
    """Returns an error in one line, with file and line number of the code below a folder that raised it.

    Args:
      error: the error that was caught.
      below: the folder; None for the innermost code.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [line for line in lines if below is not None and line[0].startswith(f"{below}{os.sep}")]
    return ":".join([*map(str, (own or lines)[-1]), f" {text}"]) if lines else text
