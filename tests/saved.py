"""Folders of runs that never ran, for tests of what reads them."""

import errno
import json
import os
import sys
from pathlib import Path

from runs import files, identity
from runs.reporting import done

START = {
    "commit": "0" * 40,
    "tree": "clean",
    "python": "3",
    "packages": {"jax": "0"},
    "devices": ["cpu"],
    "command": [],
}


def stale_handle(path):
    """In the place of what reads a file: the error of a network disk that has gone away."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def contents(folder) -> dict[str, bytes | None]:
    """Returns everything below a folder, by path, with the contents of files."""
    paths = sorted(Path(folder).rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def evaluated(step, **numbers):
    """Returns the record of an evaluation."""
    return {"kind": "eval", "step": step, "epoch": step / 10, "wall_seconds": 1.0, **numbers}


def save(folder, config, records, *, state="finished"):
    """Writes the folder of a run, and returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(files.to_json(identity.plain(config)))
    (folder / "env.json").write_text(json.dumps({"starts": [START]}))
    lines = [json.dumps(files.encode_numbers(record)) for record in records]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if state == "finished":
        (folder / "DONE").write_bytes(done.content(folder, {}))
    return folder


def train_command(run, folder):
    """Stands in for ``queue.train_command``: writes a finished run whose accuracy is its learning rate and a bit."""
    rate = run.config["optimizer"]["learning_rate"]
    seed = run.config["seed"]
    numbers = {"loss": 1 - rate, "accuracy": rate + seed / 100, "learning_rate": 0.0, "bytes_per_worker": 8}
    save(folder, run.config, [evaluated(5, **numbers), evaluated(10, **numbers)])
    return [sys.executable, "-S", "-c", "pass"]
