"""One of several processes: joins the others and makes one run of train.py after another with them.

    python -m tests.several COORDINATOR P INDEX DEVICES RUNS.json CODE

RUNS.json is a list of argument lists, whose runs end with exit code CODE; DEVICES are those of this process. The
others' output goes to the runs' logs.
"""

import json
import pathlib
import sys

import jax
from absl import flags

from parallel import processes
from tests.in_process import train_py


def main(coordinator: str, count: str, index: str, devices: str, path: str, code: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(devices))
    processes.join(coordinator=coordinator, num_processes=int(count), process_id=int(index))
    flags.FLAGS(sys.argv[:1])
    for arguments in json.loads(pathlib.Path(path).read_text()):
        assert train_py(*arguments) == int(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
