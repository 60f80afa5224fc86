"""Records: after any kill and resume, none missing and none twice."""

import errno
import json
import math
import os
import struct
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from launch.whole_files import replacing
from runs import SaveError, open_run
from runs.reporting.records import Records, read, stream
from tests.refused import refused


def _record(step, **fields):
    return {"kind": "train", "step": step, "loss": 1.0 / (step + 1), "wall_seconds": 10.0 * step, **fields}


def _write(path, steps, **kwargs):
    with Records(path, **kwargs) as records:
        for step in steps:
            records.append(_record(step))


def test_lines_are_strict_json(tmp_path):
    path = tmp_path / "metrics.jsonl"
    numbers = {"loss": np.float32("nan"), "up": math.inf, "down": -np.inf}
    others = {"kind": "train", "step": 3, "note": "nane", "none": None}
    with Records(path) as records:
        records.append({**others, "step": np.int64(3), **numbers})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {**others, "loss": "nan", "up": "inf", "down": "-inf"}
    (record,) = read(path)
    assert math.isnan(record.pop("loss")) and record == {**others, "up": math.inf, "down": -math.inf}


def test_appended_lines_are_with_the_operating_system_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = Records(path)
    records.append(_record(1))
    assert [record["step"] for record in read(path)] == [1], "a kill at this moment would lose the line"
    records.close()
    records.close()


@pytest.mark.parametrize("resume_step", [None, 0, 2, 4, 5])
@pytest.mark.parametrize("cut", [0, 1, 9])
def test_every_cut_of_the_last_line_and_every_resume_step(tmp_path, resume_step, cut):
    whole = tmp_path / "whole.jsonl"
    path = tmp_path / "metrics.jsonl"
    _write(whole, range(7))
    _write(path, range(6))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut])  # killed while writing the line of step 5
    _write(path, range(0 if resume_step is None else resume_step + 1, 7), resume_step=resume_step)
    # A checkpoint never knows more than the records, so the cut line of step 5 goes with a resume before it; one byte
    # less is the newline alone, and that line is whole.
    if resume_step == 5 and cut > 1:
        assert [record["step"] for record in read(path)] == [0, 1, 2, 3, 4, 6]
    else:
        assert path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("bad", [b"{", b"[1]\n", b"\n", b'{"kind": "train"}\n', b'{"step": 1}\n', b"\x00\xff\n"])
def test_damage_before_the_last_line_is_refused_and_left_alone(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    _write(path, [1])
    path.write_bytes(path.read_bytes() + bad + b'{"kind": "train", "step": 2}\n')
    before = path.read_bytes()
    for action in (lambda: read(path), lambda: Records(path, resume_step=2)):
        with refused(ValueError, "line 2 is damaged"):
            action()
    assert path.read_bytes() == before


def test_a_line_being_written_is_left_out_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, [1, 2])
    first, second = path.read_bytes().splitlines(keepends=True)
    for size in range(len(second)):
        path.write_bytes(first + second[:size])
        whole = [1, 2] if size == len(second) - 1 else [1]  # without its newline alone it is whole
        assert [record["step"] for record in read(path)] == whole


def _events(folder):
    """What TensorBoard would read: every event of every file, checksums verified, in the order of the files."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    events = []
    for path in sorted(folder.iterdir(), key=lambda p: int(p.name.rsplit(".", 1)[1])):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("Q", content, at)
            assert struct.unpack_from("I", content, at + 8)[0] == masked_crc32c(content[at : at + 8])
            data = content[at + 12 : at + 12 + size]
            assert struct.unpack_from("I", content, at + 12 + size)[0] == masked_crc32c(data)
            events.append(event_pb2.Event.FromString(data))
            at += 16 + size
    return events


def _shown(events):
    """The points that TensorBoard shows: a session start at step s hides earlier events of step s and later."""
    points = []
    for event in events:
        if event.HasField("session_log"):
            points = [point for point in points if point[0] < event.step]
        points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return points


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    folder = tmp_path / "tensorboard"
    _write(tmp_path / "metrics.jsonl", range(5), tensorboard=folder)
    _write(tmp_path / "metrics.jsonl", range(3, 7), tensorboard=folder, resume_step=2)
    events = _events(folder)
    assert events[0].file_version == "brain.Event:2"
    losses = [(step, value) for step, tag, value in _shown(events) if tag == "train/loss"]
    assert losses == [(step, np.float32(1.0 / (step + 1))) for step in range(7)]
    _write(tmp_path / "metrics.jsonl", range(2), tensorboard=folder)  # killed before a checkpoint: from the beginning
    assert [step for step, tag, _ in _shown(_events(folder)) if tag == "train/loss"] == [0, 1]


def test_tensorboard_gets_numbers_alone(tmp_path):
    record = _record(1, big=1e300, nan=math.nan, text="x", none=None, flag=True, count=10**12)
    with Records(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tb") as records:
        records.append(record)
        records.flush()
        values = {tag: value for _, tag, value in _shown(_events(tmp_path / "tb"))}  # on disk after a flush
    assert values.keys() == {"train/loss", "train/wall_seconds", "train/big", "train/nan", "train/count"}
    assert math.isnan(values["train/nan"]) and values["train/big"] == math.inf


@pytest.mark.parametrize("method", ["flush", "close", "write_event"])
def test_sinks_are_served_even_if_tensorboard_has_no_space(method, tmp_path, monkeypatch):
    from tensorboardX.event_file_writer import EventsWriter

    def full(*arguments):
        works(*arguments)
        if error := next(errors, None):
            raise error

    works = getattr(EventsWriter, method)
    errors = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
    calls = []
    kept = SimpleNamespace(
        append=calls.append,
        flush=lambda: calls.append("flush"),
        close=lambda: calls.append("close"),
    )
    records = Records(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard", sinks=[kept])
    monkeypatch.setattr(EventsWriter, method, full)
    with pytest.raises(SaveError, match="tensorboard' could not be saved: No space left"), records:
        records.append(_record(1))
    assert calls == [_record(1), "flush", "close"]
    records.close()
    assert calls[-2:] == ["flush", "close"], "once"


def test_a_tensorboard_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(SaveError, match="tensorboard' could not be saved: File exists"):
        Records(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard")


def test_a_copy_by_hard_links_is_a_run_of_its_own(tmp_path):
    """As ``cp -al`` makes it, to keep what a run had come to."""
    _write(tmp_path / "metrics.jsonl", [1, 2])
    before = (tmp_path / "metrics.jsonl").read_bytes()
    os.link(tmp_path / "metrics.jsonl", tmp_path / "copy.jsonl")
    _write(tmp_path / "copy.jsonl", [3], resume_step=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert [record["step"] for record in read(tmp_path / "copy.jsonl")] == [1, 2, 3]


def test_a_resume_reads_many_records_one_at_a_time(tmp_path):
    """As many as a file of 300,000 has, the memory is that of a few: all that grows is the file."""
    path, count = tmp_path / "metrics.jsonl", 3000
    line = json.dumps({**_record(0), "step": "STEP", "telemetry": "x" * 2000}).replace('"STEP"', "{}")
    path.write_text("".join(f"{line.replace('{}', str(step), 1)}\n" for step in range(1, count + 1)))
    size = path.stat().st_size
    uses = {
        "check": lambda: [None for _ in stream(path)],
        "the same": lambda: Records(path, resume_step=count, logged_steps=range(1, count + 1)).close(),
        "cut": lambda: Records(path, resume_step=count - 1, logged_steps=range(1, count)).close(),
    }
    for name, use in uses.items():
        tracemalloc.start()
        use()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size / 10, f"{name}: {peak} of {size} bytes"
    assert [record["step"] for record in read(path)] == list(range(1, count))


def _kept_as_before(lines, resume_step, logged_steps):
    """What a resume keeps and finds lost, of records that are all in memory."""
    kept = [record for record in lines if record["step"] <= resume_step]
    known = {record["step"] for record in kept if record["kind"] == "train"}
    gaps = [range(r["first_step"], r["step"] + 1) for r in kept if r["kind"] == "gap"]
    return kept, [step for step in logged_steps if step not in known and not any(step in gap for gap in gaps)]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_records_is_kept_and_missed_as_their_steps_say(seed, tmp_path):
    """Also records that are there twice, in another order, or of steps that are not to be logged."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "metrics.jsonl"
    lines = [_record(int(step), kind=str(rng.choice(["train", "eval"]))) for step in rng.integers(0, 20, 15)]
    lines += [{"kind": "gap", "first_step": int(first), "step": int(first) + 2} for first in rng.integers(0, 20, 2)]
    lines = [lines[i] for i in rng.permutation(len(lines))]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    kept, lost = _kept_as_before(lines, 14, range(2, 15, 2))
    with Records(path, resume_step=14, logged_steps=range(2, 15, 2)) as records:
        assert records.lost_steps == lost
        assert records.wall_seconds == max(record.get("wall_seconds", 0.0) for record in kept)
        evaluations = [record for record in kept if record["kind"] == "eval"]
        assert records.last_evaluation == (evaluations[-1] if evaluations else None)
    assert read(path)[: len(kept)] == kept and len(read(path)) == len(kept) + bool(lost)


def test_what_a_killed_writer_left_goes_with_the_next_start(tmp_path):
    for name in ("config.json", "DONE", "labels.csv", "events.npz", "curves.png"):
        (tmp_path / f".{name}.0123456789ab.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("not a run's")
    open_run(str(tmp_path), {"seed": 0}).close()
    assert [path.name for path in tmp_path.glob(".*")] == [".mine.tmp"]


def test_two_writers_that_are_both_in_the_middle(tmp_path):
    path = tmp_path / "rows.jsonl"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    (tmp_path / "plain").touch()
    assert path.read_bytes() == b"first" and path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_many_gaps_are_looked_through_once(tmp_path):
    """They are sorted, not asked one by one for each step that is missing; here that would be 10^9 questions."""
    path, count = tmp_path / "metrics.jsonl", 3000
    gaps = [{"kind": "gap", "first_step": 10**6 + step, "step": 10**6 + step} for step in range(count)]
    path.write_text("".join(f"{json.dumps(gap)}\n" for gap in [*gaps, {"kind": "gap", "first_step": 5, "step": 9}]))
    with Records(path, resume_step=10**7, logged_steps=range(1, 10**5 * 3)) as records:
        assert records.lost_steps[:5] == [1, 2, 3, 4, 10] and len(records.lost_steps) == 3 * 10**5 - 6
