"""Folders of runs that never ran, for tests of what reads them."""

import json
from pathlib import Path

from runs import files, identity

START = {
    "commit": "0" * 40,
    "tree": "clean",
    "python": "3",
    "packages": {"jax": "0"},
    "devices": ["cpu"],
    "command": [],
}


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
        (folder / "DONE").write_text("{}")
    return folder
