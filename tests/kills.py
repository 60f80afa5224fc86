"""A run of train.py by processes that SIGKILL ends at random moments, one after the other, until one is done."""

import os
import random
import signal
import subprocess
import sys
import time

from tests import ROOT


def train(arguments, folder, *, kills: int, records: int) -> int:
    """Runs train.py in ``folder / "run"`` to its end; returns how many of its processes were killed on the way.

    Args:
      arguments: of train.py, apart from the folder.
      folder: for the run, and for what the processes print; made where it is missing.
      kills: so many processes are killed, each where metrics.jsonl has a number of lines that is drawn, and a little
        later; one that ends before is not.
      records: so many lines the whole run writes.
    """
    rng = random.Random(0)
    path = folder / "run" / "metrics.jsonl"
    folder.mkdir(exist_ok=True)

    def start() -> subprocess.Popen:
        command = [sys.executable, str(ROOT / "train.py"), *arguments, f"--workdir={folder / 'run'}"]
        with open(folder / "log", "a") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    killed = 0
    for until in sorted(rng.uniform(0, records) for _ in range(kills)):
        process = start()
        while (path.read_bytes().count(b"\n") if path.exists() else 0) < until and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert start().wait() == 0, (folder / "log").read_text()
    return killed
