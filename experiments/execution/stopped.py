"""STOPPED, the mark of a run of a sweep that was stopped early; without it, the run goes on from its checkpoint."""

import json
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import runs as run_folders

NAME = "STOPPED"
State = Literal["diverged", "stopped"]
LEFT_OUT = "left_out"  # key of a row: the state of a run that is not ranked


class Stopped(NamedTuple):
    """Why and where a run was stopped early.

    Attributes:
      state: "diverged" if its loss was not finite, "stopped" if it was behind the other runs.
      step: the step whose record showed it.
    """

    state: State
    step: int


def write(folder: Path, stopped: Stopped) -> None:
    """Marks the run in a folder as stopped early."""
    run_folders.write_atomically(folder / NAME, json.dumps(stopped._asdict()).encode())


def read(folder: Path) -> Stopped | None:
    """Returns why the run in a folder was stopped early; None if it was not.

    Raises:
      ValueError: one line, if the mark is damaged.
    """
    path, way_out = folder / NAME, "remove it"
    body = run_folders.identity.read_object(path, way_out=way_out)
    if body is None:
        return None
    state, step = body.get("state"), body.get("step")
    if state not in get_args(State) or type(step) is not int:
        raise run_folders.identity.damaged(path, "it has no state and step", way_out=way_out)
    return Stopped(cast(State, state), step)
