"""A run of train.py by processes that SIGKILL ends at random moments, one after the other, until one is done."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests import ROOT


def train(
    arguments: Sequence[str], folder: pathlib.Path, *, kills: int, records: int, num_devices: Sequence[int] = ()
) -> int:
    """Runs train.py in ``folder / "run"`` to its end; returns how many of its processes were killed on the way.

    Args:
      arguments: of train.py, apart from the folder and the number of devices.
      folder: for the run, and for what the processes print; made where it is missing.
      kills: so many processes are killed, each where metrics.jsonl has a number of lines that is drawn, and a little
        later; one that ends before is not.
      records: so many lines the whole run writes.
      num_devices: of each process, one of these; without any the machine's.
    """
    rng = random.Random(0)
    folder.mkdir(exist_ok=True)

    def start() -> subprocess.Popen:
        devices = [f"--num_devices={rng.choice(num_devices)}"] if num_devices else []
        command = [sys.executable, str(ROOT / "train.py"), *arguments, f"--workdir={folder / 'run'}", *devices]
        with open(folder / "log", "a") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def num_lines() -> int:
        path = folder / "run" / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    killed = 0
    for until in sorted(rng.uniform(0, records) for _ in range(kills)):
        process = start()
        while num_lines() < until and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert start().wait() == 0, (folder / "log").read_text()
    return killed
