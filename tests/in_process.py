"""The command ``train.py`` without a process of its own."""

from absl.testing import flagsaver

import train


def train_py(*arguments: str) -> int:
    """Runs ``train.py ARGUMENTS`` and returns its exit code; no flag stays as the arguments set it."""
    with flagsaver.flagsaver():
        return train.main(["train.py", *arguments])
