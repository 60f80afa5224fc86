"""The parameters of a run for other programs."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import runs
from runs.errors import ConfigError
from training.checkpoints import checkpoint_named, restore_params


def export(folder: Path, *, checkpoint: str, output: Path | None, trusted: Iterable[str] = ()) -> Path:
    """Writes the parameters at which a run is evaluated as a safetensors file, and returns its path.

    Args:
      folder: of the run, finished or not.
      checkpoint: "best", "latest", or a step.
      output: the file; FOLDER/params.safetensors where it is None.
      trusted: as of ``restore_params``.

    Raises:
      ConfigError: one line, if the folder holds no such checkpoint, names a module that is not trusted, or safetensors
        is not installed.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise ConfigError("export: needs the package safetensors: pip install safetensors")
    from safetensors.numpy import save

    params = runs.flatten(restore_params(folder, checkpoint=checkpoint_named(checkpoint), trusted=trusted))
    path = folder / "params.safetensors" if output is None else runs.expand(str(output), key="output")
    runs.write_atomically(path, save(params, metadata={"format": "flax"}))
    return path
