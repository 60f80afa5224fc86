"""The files outside of this repository that a run depends on: code of one's own, and files that its config names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs import own_code
from reducers.arrivals import foreign_files
from runs.environment import INPUT, Code


def describe(config: Mapping[str, Any]) -> Code:
    """Returns the files that a run depends on, with their hashes: of modules by name, and of others by their key.

    What a data set holds is not among them: its source has a fingerprint of its own. Nor is the checkpoint that
    ``config.init_from`` gives: a run takes it once, and records it then.

    Args:
      config: complete and valid, so that all modules that it names are imported.

    Raises:
      ValueError: one line, as of ``own_code.describe``, or if a file cannot be read.

    >>> from configs import flags
    >>> describe(flags.load("configs/digits.py"))
    {}
    """
    found = dict(own_code.describe(config))
    for key, path in _named(config):
        try:
            digest = foreign_files.sha256(path)
        except FileNotFoundError:  # whoever needs it says so
            continue
        except OSError as error:
            raise ValueError(f"{key}={str(path)!r}: cannot be read ({error.strerror})") from None
        found[f"{INPUT}{key}"] = {"path": str(path), "sha256": digest}
    return found


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yields key and path of recorded times and of orders of arrival."""
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
