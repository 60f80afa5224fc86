"""The command ``train.py`` without a process of its own."""

from absl.testing import flagsaver

import train
from tests import ROOT

DIGITS = f"{ROOT}/configs/digits.py"


def keys(text: str) -> tuple[str, ...]:
    """Returns the flags that set keys of the config, of which a text has one a word: "seed=1 reducer.name=sum"."""
    return tuple(f"--config.{key}" for key in text.split())


def train_py(*arguments: str) -> int:
    """Runs ``train.py ARGUMENTS`` and returns its exit code; no flag stays as the arguments set it."""
    with flagsaver.flagsaver():
        return train.main(["train.py", *arguments])


def train_digits(workdir, *flags: str) -> int:
    """Trains configs/digits.py in a folder and returns the exit code; on 2 devices, unless the flags say otherwise."""
    return train_py(f"--config={DIGITS}", "--num_devices=2", *flags, f"--workdir={workdir}")
