"""The sinks of tracking services, against what their packages keep on this machine: nothing is sent anywhere."""

import json
import os
import struct
import subprocess
import sys

import pytest

import runs
from tests import ROOT

RUN = (
    *(f"--config={ROOT}/configs/digits.py", "--num_devices=1", "--config.model.name=softmax"),
    "--config.schedule.name=constant",
    *("--config.log_every_steps=5", "--config.eval_every_steps=10", "--config.checkpoint_every_steps=10"),
)


def train(folder, tracker, num_steps, **variables):
    """Trains in a process of its own: a service keeps threads, and settings of its process."""
    command = [sys.executable, f"{ROOT}/train.py", *RUN, f"--config.train_steps={num_steps}", f"--sink={tracker}"]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [*command, f"--workdir={folder}"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "calls failed" not in done.stderr, done.stderr


def numbers(folder, *, after=0):
    """The numbers of a run's records, by kind, name and step."""
    return {
        (f"{record['kind']}/{key}", record["step"]): value
        for record in runs.read(folder / "metrics.jsonl")
        for key, value in record.items()
        if isinstance(value, int | float) and key != "step" and record["step"] > after
    }


def messages(data):
    """The messages of a file of wandb: after 7 bytes a log of LevelDB, in blocks of 32 KiB."""
    at, message = 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the end of one
            yield message
            message = b""


@pytest.mark.slow
def test_mlflow_has_every_number_and_a_run_that_goes_on_is_the_same(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs requirements-trackers.txt")
    store = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/store", "MLFLOW_ALLOW_FILE_STORE": "true"}
    for num_steps in (20, 30):
        train(tmp_path / "run", "mlflow", num_steps, **store)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in store.items():
            patch.setenv(key, value)
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("syncsum").experiment_id])
        assert run.data.tags["folder"] == str(tmp_path / "run") and run.info.status == "FINISHED"
        assert run.data.params["model.name"] == "softmax" and run.data.params["train_steps"] == "20"
        kept = {
            (key, entry.step): entry.value
            for key in run.data.metrics
            for entry in client.get_metric_history(run.info.run_id, key)
        }
    assert kept == pytest.approx(numbers(tmp_path / "run")) and len(kept) > 50


@pytest.mark.slow
def test_weights_and_biases_has_every_number_and_a_run_that_goes_on_has_its_id(tmp_path):
    pytest.importorskip("wandb", reason="needs requirements-trackers.txt")
    from wandb.proto import wandb_internal_pb2

    folder = tmp_path / "run"
    for num_steps in (20, 30):
        train(folder, "wandb", num_steps, WANDB_MODE="offline")
    kept, ids = {}, set()
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for message in messages(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(message)
            if record.HasField("run"):
                ids.add((record.run.project, record.run.run_id))
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            kept |= {(key, step): value for key, value in items.items() if not key.startswith("_")}
    assert kept == pytest.approx(numbers(folder)) and len(kept) > 50
    assert len(ids) == 1 and {project for project, _ in ids} == {"syncsum"}
