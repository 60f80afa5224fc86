"""Files that something has changed."""

from pathlib import Path


def edit(path: Path, old: str, new: str) -> None:
    """Replaces a part of a text file."""
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def flip(path: Path) -> None:
    """Flips a bit near the end of a file."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
