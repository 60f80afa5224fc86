"""Several processes are one run: the numbers of one process, and nothing lost when one of them ends."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from absl.testing import flagsaver

import runs
import state
import train
from configs import flags
from launch import local
from program import build

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIGITS = f"{ROOT}/configs/digits.py"
STEPS = (
    "--config.train_epochs=None",
    "--config.train_steps=30",
    "--config.eval_every_steps=15",
    "--config.eval_every_epochs=None",
    "--config.checkpoint_every_steps=15",
    "--config.checkpoint_every_epochs=None",
    "--config.log_every_steps=1",
    "--config.num_workers=8",
    "--config.model.hidden_sizes=(16,)",
    "--config.ema_decay=None",
)
ADASUM = ("--config.reducer.name=adasum",)
LATE = (
    "--config.reducer.name=backup_workers",
    "--config.reducer.num_required=6",
    "--config.arrivals.name=shifted_exponential",
)
RUNS = {
    "mean": ("--config.reducer.name=mean",),
    "adasum": ADASUM,
    "backup_workers": LATE,
    "hierarchical_adasum": (*ADASUM, "--config.reducer.group_size=4", "--config.reducer.within=mean"),
    "deltas": (*ADASUM, "--config.reducer_on=updates", "--config.lanes=dispatched"),
    "shard_map": ("--config.lift=shard_map", *LATE),
}
MANY_SECONDS = 240


def arguments(name, workdir, *more):
    return [f"--config={DIGITS}", f"--workdir={workdir}", *STEPS, *RUNS[name], *more]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def train_several(folder, *, processes, devices, argument_lists):
    """Makes the runs as several processes."""
    listed = folder / "runs.json"
    listed.write_text(json.dumps(argument_lists))
    where = f"127.0.0.1:{local._free_port()}"
    command = [sys.executable, "-m", "tests.several", where, str(processes)]
    started = [
        subprocess.Popen(
            [*command, str(index), str(devices), str(listed)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]
    said = [process.communicate(timeout=MANY_SECONDS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes, said


def train_alone(argument_list, *, devices):
    with flagsaver.flagsaver():
        assert train.main(["train.py", *argument_list, f"--num_devices={devices}"]) == 0


def final_state(name, workdir):
    overrides = [f for f in (*STEPS, *RUNS[name]) if f.startswith("--config.")]
    program = build(flags.load(DIGITS, overrides))
    with runs.Checkpoints(workdir / "checkpoints", access="read") as checkpoints:
        step, found = checkpoints.restore(state.abstract(program))
    return step, found


def assert_same_run(name, workdir, expected):
    step, found = final_state(name, workdir)
    expected_step, there = final_state(name, expected)
    assert step == expected_step == 30
    for part in ("shared", "local"):
        for ours, theirs in zip(*(jax.tree.leaves(tree[part]) for tree in (found, there)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    ours, theirs = (runs.read(path / "metrics.jsonl") for path in (workdir, expected))
    assert [r["step"] for r in ours] == [r["step"] for r in theirs] and len(ours) == 32
    for name in ("loss", "accuracy", "simulated_seconds", "contributors"):
        np.testing.assert_allclose([r[name] for r in ours], [r[name] for r in theirs], rtol=1e-4, atol=1e-5)


LAYOUTS = [(2, 2), *(pytest.param(*layout, marks=pytest.mark.slow) for layout in ((2, 1), (4, 1), (4, 2)))]


@pytest.mark.parametrize(("processes", "devices"), LAYOUTS)
def test_several_processes_give_the_numbers_of_one(tmp_path, processes, devices):
    several, alone = tmp_path / "several", tmp_path / "alone"
    several.mkdir()
    train_several(
        several,
        processes=processes,
        devices=devices,
        argument_lists=[arguments(name, several / name) for name in RUNS],
    )
    for name in RUNS:
        train_alone(arguments(name, alone / name), devices=processes * devices)
        assert_same_run(name, several / name, alone / name)
        logs = {f"process-{i}.log" for i in range(1, processes)}
        assert {path.name for path in (several / name).glob("process-*.log")} == logs
        assert "step 30/30" in (several / name / "process-1.log").read_text()
