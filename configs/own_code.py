"""The code of a config's own components, which is part of a run's identity: files and their hashes.

A component is a constructor of another module than this project's, such as ``{"name": "my_module:ViT"}``. Its code is
the file of that module, and the files in the same folder or in ``PYTHONPATH`` that its import statements lead to.
Installed packages are not part of it, and neither is what is imported by other means than an import statement.
"""

import ast
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs import schema
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
    """Returns the code of the components that a config names.

    Args:
      config: complete and valid, so that all modules that it names are imported.

    Raises:
      ValueError: one line, if a file has the same name as another module, or cannot be read.

    >>> from configs import flags
    >>> describe(flags.load("configs/digits.py"))
    {}
    """
    found: dict[str, Path] = {}
    for name in modules_of(config):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and not is_installed(Path(file)):
            found |= imported_with(name, Path(file), folder=_folder(name, Path(file)))
    return {name: {"path": str(found[name]), **_hashes(found[name])} for name in sorted(found)}


def modules_of(config: Mapping[str, Any]) -> set[str]:
    """Returns the modules outside of this project whose constructors a config names, in blocks inside blocks, too."""
    named = {components.module_of(name) for name in components.names_in(config)}
    # A config file may also have put its constructors into a registry, under names without a module.
    found = (schema.BLOCKS[block].find(config[block]["name"]) for block in schema.BLOCKS)
    registered = {getattr(constructor, "__module__", "") for constructor in found if constructor not in SHIPPED}
    return {name for name in named if name in sys.modules} | {name for name in registered if not _is_ours(name)}


def imported_with(name: str, file: Path, *, folder: Path) -> dict[str, Path]:
    """Returns a module, the packages above it, and what they import from its folder and ``PYTHONPATH``, with the files.

    Nothing is executed.

    Args:
      name: the module.
      file: of the module.
      folder: where imports begin, as an entry of ``sys.path``.

    Raises:
      ValueError: one line, if ``import`` would take another file of the same name than the one in the folder.
    """
    folders = [
        folder,
        *(Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry),
    ]
    found = {**_files(name, folder=folder), name: file}
    new = list(found)
    while new:
        module = new.pop()
        for imported in _imports(found[module], module=module):
            for prefix, path in (pair for place in folders for pair in _files(imported, folder=place).items()):
                if prefix in found or is_installed(path) or (path.is_relative_to(ROOT) and _is_ours(prefix)):
                    continue
                try:
                    components.file_of(prefix)
                except ValueError as error:
                    raise ValueError(f"{str(found[module])!r} imports {prefix!r}: {error}") from None
                found[prefix] = path
                new.append(prefix)
    return found


def _files(module: str, *, folder: Path) -> dict[str, Path]:
    """Returns the files in a folder of a module and of the packages above it; only a package has modules inside."""
    found, path = {}, folder
    parts = module.split(".")
    for count, part in enumerate(parts, start=1):
        path /= part
        files = [path / "__init__.py", *([path.with_suffix(".py")] if count == len(parts) else [])]
        found.update({".".join(parts[:count]): file for file in files if file.is_file()})
    return found


def _imports(file: Path, *, module: str) -> Iterator[str]:
    """Yields the modules, and what may be modules, that the import statements of a file name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever imports the file will say so
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = [part for part in (*above, node.module) if part]
            yield from (".".join(base) for _ in base[:1])
            yield from (".".join([*base, alias.name]) for alias in node.names if alias.name != "*")


def _folder(module: str, file: Path) -> Path:
    """Returns the folder in which ``import`` found the top-level package of a module."""
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def _is_ours(module: str) -> bool:
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    return top in ROOMS and (file is None or Path(file).resolve().is_relative_to(ROOT))


def _hashes(file: Path) -> dict[str, str]:
    """Returns the hash of a file, and that of what Python reads in it, which a comment does not change."""
    content = file.read_bytes()
    hashes = {"sha256": hashlib.sha256(content).hexdigest()}
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # an extension module, say
        hashes["syntax"] = hashlib.sha256(ast.dump(ast.parse(content)).encode()).hexdigest()
    return hashes
