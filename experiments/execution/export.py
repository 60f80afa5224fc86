"""The variables of a run for other programs."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import runs
from runs.errors import ConfigError
from training.checkpoints import checkpoint_named, restore_variables


def export(folder: Path, *, checkpoint: str, output: Path | None, trusted: Iterable[str] = ()) -> Path:
    """Writes the variables with which a run is evaluated as a safetensors file, and returns its path.

    They are the parameters, and the statistics of BatchNorm as "batch_stats/...".

    Args:
      folder: of the run, finished or not.
      checkpoint: "best", "latest", or a step.
      output: the file; None for FOLDER/params.safetensors.
      trusted: modules of the user's own that may be imported, as in ``restore_params``.

    Raises:
      ConfigError: one line, if the folder holds no such checkpoint, names a module that is not trusted, or safetensors
        is not installed.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise ConfigError("export: needs the package safetensors: pip install safetensors")
    from safetensors.numpy import save

    restored = restore_variables(folder, checkpoint=checkpoint_named(checkpoint), trusted=trusted)
    params, others = map(runs.flatten, restored)
    if both := sorted(params.keys() & others.keys()):
        raise ConfigError(f"export: {both[0]!r} is the name of a parameter and of another variable of the model")
    path = folder / "params.safetensors" if output is None else runs.expand(str(output), key="output")
    runs.write_atomically(path, save(params | others, metadata={"format": "flax"}))
    return path
