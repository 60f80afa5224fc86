"""The sinks of tracking services, against what their packages keep on this machine: nothing is sent anywhere."""

import json
import os
import shutil
import struct

import pytest

import runs
from runs.reporting import sinks
from tests.in_process import DIGITS, keys
from tests.started import python

RUN = (
    *(f"--config={DIGITS}", "--num_devices=1"),
    *keys("model.name=softmax schedule.name=constant log_every_steps=5 eval_every_steps=10 checkpoint_every_steps=10"),
)


def train(folder, tracker, num_steps, **variables):
    """Trains in a process of its own: a service keeps threads, and settings of its process."""
    flags = (*RUN, f"--config.train_steps={num_steps}", f"--sink={tracker}", f"--workdir={folder}")
    done = python("train.py", *flags, timeout=300, **variables)
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


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of MLflow in a folder, with nothing set but its place; returns a function that reads its runs."""
    mlflow = pytest.importorskip("mlflow", reason="needs requirements-trackers.txt")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)

    def read():
        client = mlflow.MlflowClient()
        found = client.search_runs([client.get_experiment_by_name("syncsum").experiment_id])
        for run in found:
            history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
            yield run, {(key, entry.step): entry.value for key, entries in history.items() for entry in entries}

    yield read
    os.environ.pop("MLFLOW_ALLOW_FILE_STORE", None)  # which the sink sets


def test_mlflow_has_every_number_and_a_run_that_goes_on_is_the_same(tmp_path, store):
    os.environ.pop("MLFLOW_ALLOW_FILE_STORE", None)
    train(tmp_path / "run", "mlflow", 20)
    (tmp_path / "run").rename(tmp_path / "it's moved")
    train(tmp_path / "it's moved", "mlflow", 30)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    ((run, kept),) = store()
    assert run.data.tags["folder"] == str(tmp_path / "run") and run.info.status == "FINISHED"
    assert run.data.params["model.name"] == "softmax" and run.data.params["train_steps"] == "20"
    assert kept == pytest.approx(numbers(tmp_path / "it's moved")) and len(kept) > 50


def append(folder, *records, run_id="", ending="finished"):
    """Gives records of a start of a run to MLflow."""
    sink = sinks.make("mlflow", folder, {"seed": 0, "odd key?": "x" * 9000}, run_id=run_id)
    for record in records:
        sink.append(record)
    sink.ending = ending
    said = []
    sink.report = said.append
    sink.close()
    assert not said


def record(step, **more):
    return {"kind": "train", "step": step, "loss": step / 2, **more}


@pytest.mark.parametrize(
    "name",
    [
        "it's mine",
        "x' AND attributes.status = 'FINISHED",
        'double " quote',
        "x' OR tags.folder != '",
        "back\\slash`;--",
        "ключ %s \U0001f600",
    ],
)
def test_no_path_is_taken_for_another_run(name, tmp_path, store):
    for number, folder in enumerate(("first", name)):
        append(tmp_path / folder, record(number + 1))
    append(tmp_path / name, record(3))
    assert sorted(sorted(step for _, step in kept) for _, kept in store()) == [[1], [2, 3]]


def test_a_folder_that_is_begun_anew_is_another_run(tmp_path, store):
    config = {"seed": 0}
    for number, expected in enumerate(("new", "resumed", "new")):
        if number == 2:
            shutil.rmtree(tmp_path / "run")
        with runs.open_run(str(tmp_path / "run"), config) as folder:
            assert folder.state == expected
            append(folder.path, record(number + 1), run_id=folder.id)
    assert sorted(sorted(step for _, step in kept) for _, kept in store()) == [[1, 2], [3]]


ODD = ("top@5", "a//b", "../up", "/root", "α→β", "per cent %", "x" * 400, "end/", "a:b", ".")


def test_names_that_mlflow_refuses_lose_no_number(tmp_path, store):
    """One call a record; a bool is no number."""
    from mlflow import MlflowClient

    batches = []
    log_batch = MlflowClient.log_batch

    def counted(self, run_id, *arguments, **options):
        batches.append(len(options.get("metrics", ())))
        return log_batch(self, run_id, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", counted)
        odd = {name: float(number) for number, name in enumerate(ODD)}
        append(tmp_path, record(1, **odd, is_late=True, last=7.0), record(2, nan=float("nan"), big=float("inf")))
    assert batches == [0, len(ODD) + 2, 3]
    ((run, kept),) = store()
    assert kept["train/last", 1] == 7.0 and len(kept) == len(ODD) + 2 + 3
    assert sorted(value for (_, step), value in kept.items() if step == 1) == sorted([*odd.values(), 0.5, 7.0])
    assert run.data.params["seed"] == "0" and len(run.data.params) == 2


@pytest.mark.parametrize(("ending", "status"), [("finished", "FINISHED"), ("stopped", "KILLED"), ("failed", "FAILED")])
def test_a_run_ends_as_it_ended(ending, status, tmp_path, store):
    append(tmp_path, record(1), ending=ending)
    ((run, _),) = store()
    assert run.info.status == status
    append(tmp_path, ending="failed")  # refused before its first record
    ((run, _),) = store()
    assert run.info.status == status


def test_weights_and_biases_has_every_number_and_a_run_that_goes_on_has_its_id(tmp_path):
    pytest.importorskip("wandb", reason="needs requirements-trackers.txt")
    from wandb.proto import wandb_internal_pb2

    folder = tmp_path / "run"
    for num_steps in (20, 30):
        train(folder, "wandb", num_steps, WANDB_MODE="offline")
    kept, ids, codes = {}, set(), []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for message in messages(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(message)
            if record.HasField("run"):
                ids.add((record.run.project, record.run.run_id))
            if record.HasField("exit"):
                codes.append(record.exit.exit_code)
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            kept |= {(key, step): value for key, value in items.items() if not key.startswith("_")}
    assert kept == pytest.approx(numbers(folder)) and len(kept) > 50
    assert codes == [0, 0]
    assert len(ids) == 1 and {project for project, _ in ids} == {"syncsum"}
