"""The streamed pipeline from files in TFDS's form to batches: its order, its processes, what it says of damage."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from data import tfds_sets
from data.decoding import crops
from data.decoding.pool import default_processes
from data.example_order import ExampleOrder
from data.streams import open_images
from tests import ROOT
from tests.data_folders import random_examples, random_images, warnings_said, write_set
from tests.inputs import assert_same, gather
from tests.prepared_sets import pack, shard, write_images, write_shard
from tests.refused import refused
from tests.started import python, wait_for

__all__ = ["warnings_said"]  # a fixture
SIZE, SEED, WORKERS, BATCH = 16, 3, 3, 4
TRAIN = random_images(30)
VALIDATION = random_images(13, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ImageNet as TFDS lays it out, very small; its test images have no labels."""
    unlabelled = [(content, -1) for content, _ in random_images(3, seed=2)]
    splits = {"train": TRAIN, "validation": VALIDATION, "test": unlabelled}
    return write_images(tmp_path_factory.mktemp("sets"), "imagenet2012", splits)


def prepared(folder):
    directory = str(folder.parent.parent)
    return tfds_sets.open_set(folder.parent.name, directory=directory, kind=tfds_sets.IMAGES_OF_ANY_SIZE)


def opened(folder, split="train", **options):
    mode = "training" if split == "train" else "evaluation"
    return open_images(prepared(folder), split, **{"image_size": SIZE, "mode": mode, "seed": SEED, **options})


def images(folder, split="train", **options):
    return contextlib.closing(opened(folder, split, **options))


@pytest.fixture(scope="module")
def two(folder):
    """The training examples, by two processes that all tests share."""
    with images(folder, processes=2) as examples:
        yield examples


ORDER = ExampleOrder(num_examples=len(TRAIN), batch_size=BATCH, seed=SEED)


def batch(examples, batch_index):
    index = np.concatenate([ORDER.indices(max(0, d), num_batches=1) for d in batch_index])
    return examples.gather(index, np.array(batch_index))


# ---- what a batch is ---------------------------------------------------------------------------------------------


def test_a_batch_is_crops_of_its_records(two):
    got = batch(two, [5, -1, 2**40])
    assert got["image"].shape == (WORKERS, BATCH, SIZE, SIZE, 3) and got["image"].dtype == np.uint8
    assert got["label"].shape == (WORKERS, BATCH) and got["label"].dtype == np.int32
    for worker, batch_index in ((0, 5), (2, 2**40)):
        for position, record in enumerate(ORDER.indices(batch_index, num_batches=1)[0]):
            content, label = TRAIN[record]
            numbers = crops.uniforms(SEED, batch_index, position)
            wanted = crops.random_resized_crop(content, numbers, size=SIZE)
            np.testing.assert_array_equal(got["image"][worker, position], wanted)
            assert got["label"][worker, position] == label
    assert not got["image"][1].any()  # no batch_index, no work


@pytest.mark.parametrize("processes", [0, 1])
def test_any_number_of_processes_gives_the_same_bits(processes, two, folder):
    with images(folder, processes=processes) as other:
        for batch_index in ([0, 1, 2], [-1, 9, 3]):
            assert_same(batch(other, batch_index), batch(two, batch_index))


def test_evaluation_is_complete_and_the_same_whatever_the_batch_index(folder):
    with images(folder, "test", processes=2) as examples:
        assert examples.num_examples == 13
        first, second = (gather(examples, range(13), batch_index) for batch_index in (-1, 7))
        parts = [gather(examples, [n], n) for n in range(13)]
    assert_same(first, second)
    assert_same(first, {name: np.concatenate([part[name] for part in parts], 1) for name in first})
    assert first["label"][0].tolist() == [label for _, label in VALIDATION]
    wanted = np.stack([crops.centre_crop(content, size=SIZE) for content, _ in VALIDATION])
    np.testing.assert_array_equal(first["image"][0], wanted)


def test_files_of_one_size_are_welcome_too(tmp_path):
    splits = {"train": random_examples(5, shape=(9, 9, 1)), "test": random_examples(4, shape=(9, 9, 1))}
    with images(write_set(tmp_path, "mnist", splits), "test", image_size=9, processes=0) as examples:
        got = gather(examples, range(4), -1)
    assert got["image"].shape == (1, 4, 9, 9, 3)
    assert got["label"].tolist() == [splits["test"][1].tolist()]


def test_splits_of_imagenet(folder):
    found = prepared(folder)
    assert found.splits == {"train": "train", "test": "validation"}  # its own test images have no labels
    assert found.image_shape == (None, None, 3) and found.num_classes == 1000
    with pytest.raises(ValueError, match="its images differ in size"):
        tfds_sets.open_set("imagenet2012", directory=str(folder.parents[1]))


# ---- damage ------------------------------------------------------------------------------------------------------

NAMED = "data.name='imagenet2012':"
CUT = TRAIN[7][0][:-200]
DAMAGE = {
    "cut off": ((CUT, 1), "image file is truncated"),
    "no image": ((b"no image", 1), "cannot identify image file"),
    "label": ((TRAIN[7][0], 1000), "label 1000 is not in [0, 1000)"),
    "no label": ((TRAIN[7][0], -1), "label -1 is not in [0, 1000)"),
}


def with_damage(tmp_path, *damaged):
    train = list(TRAIN)
    for record, example in damaged:
        train[record] = example
    return write_images(tmp_path, "imagenet2012", {"train": train, "validation": VALIDATION})


@pytest.mark.parametrize("case", DAMAGE)
@pytest.mark.parametrize("processes", [0, 1])
def test_a_damaged_record_stops_the_run(case, processes, tmp_path):
    example, message = DAMAGE[case]
    own = with_damage(tmp_path, (7, example))
    with images(own, processes=processes) as examples:
        with refused(ValueError, f"^{NAMED} record 7 of split 'train' cannot be decoded: .*{re.escape(message)}"):
            gather(examples, range(30))
        good = gather(examples, range(7))  # what went wrong leaves nothing behind
        assert good["label"][0].tolist() == [label for _, label in TRAIN[:7]]


@pytest.mark.parametrize("processes", [0, 2])
def test_damaged_records_are_skipped_where_that_is_asked_for(processes, tmp_path, warnings_said):
    own = with_damage(tmp_path, (7, (CUT, 1)), (8, (b"", 2)), (29, (b"", 3)))  # the last: it goes on at the first
    with images(own, processes=processes, on_damage="skip") as examples:
        for _ in range(2):
            got = gather(examples, range(30), 4)
        assert set(examples.damaged) == {7, 8, 29}
    taken = [9 if n in (7, 8) else 0 if n == 29 else n for n in range(30)]
    assert got["label"][0].tolist() == [TRAIN[record][1] for record in taken]
    for position, record in enumerate(taken):
        wanted = crops.random_resized_crop(TRAIN[record][0], crops.uniforms(SEED, 4, position), size=SIZE)
        np.testing.assert_array_equal(got["image"][0, position], wanted)
    assert len(warnings_said) == 3  # one for each
    assert sum("record 7 of split 'train'" in text for text in warnings_said) == 1


def test_nothing_but_damage_stops_at_last(tmp_path):
    own = write_images(tmp_path, "imagenet2012", {"train": [(b"", 0)] * 4, "validation": VALIDATION})
    with images(own, processes=0, on_damage="skip") as examples, pytest.raises(ValueError, match="record 1 of split"):
        gather(examples, [2])


FILES = {
    "cut off": (lambda path: os.truncate(path, path.stat().st_size // 2), "holds 0 records instead of 15"),
    "empty": (lambda path: path.write_bytes(b""), "at least 64KB"),
    "garbage": (lambda path: path.write_bytes(os.urandom(200_000)), ""),
    "gone": (lambda path: path.unlink(), "no such file"),
    "another": (lambda path: write_shard(path, (pack(*TRAIN[i]) for i in range(14))), "holds 14 records instead of 15"),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("on_damage", ["stop", "skip"])
def test_a_spoilt_file_is_named(case, on_damage, tmp_path):
    spoil, message = FILES[case]
    own = with_damage(tmp_path)
    with images(own, processes=0, on_damage=on_damage) as examples:
        spoil(shard(own, "train", 1))
        gather(examples, range(15))  # the other file
        with refused(ValueError, f"^{NAMED} split 'train' cannot be read: .*{message}") as stopped:
            gather(examples, [20])
    assert str(shard(own, "train", 1)) in str(stopped.value)


def test_a_bad_block_is_a_damaged_record_of_a_named_file(tmp_path):
    big = [(os.urandom(100_000), 0)] * 8
    own = write_images(tmp_path, "imagenet2012", {"train": big, "validation": VALIDATION}, num_shards=1)
    path = shard(own, "train", 0, num_shards=1)
    content = bytearray(path.read_bytes())
    content[2**16 * 5] ^= 255  # of a header, which has a checksum
    path.write_bytes(content)
    said = []
    with images(own, processes=0) as examples:
        for record in range(8):
            with refused(ValueError, f"record {record} of split 'train' cannot be decoded: ") as stopped:
                gather(examples, [record])
            said.append(str(stopped.value))
    (bad,) = (text for text in said if "cannot identify image file" not in text)  # what the others rightly are not
    assert str(path) in bad and "hash mismatch" in bad


# ---- processes ---------------------------------------------------------------------------------------------------


def decoding_processes(parent):
    """The process ids of a program's decoding processes."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, its, command in rows if int(its) == parent and "data.decoding.process" in command]


def own_processes(before=frozenset()):
    return [pid for pid in decoding_processes(os.getpid()) if pid not in before]


def test_processes_start_late_and_close_is_prompt(folder):
    others = set(own_processes())
    examples = opened(folder, processes=2)
    assert not own_processes(others)
    before = batch(examples, [0])
    assert len(own_processes(others)) == 2
    start = time.monotonic()
    examples.close()
    assert time.monotonic() - start < 15
    assert not own_processes(others)
    examples.close()
    assert_same(batch(examples, [0]), before)  # they start again
    examples.close()


def test_close_ends_a_gather_of_another_thread(folder):
    raised = []

    def run():
        try:
            gather(examples, list(range(30)) * 5000)  # takes half a minute
        except RuntimeError as error:
            raised.append(str(error))

    others = set(own_processes())
    with images(folder, processes=1) as examples:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_for(lambda: own_processes(others))
        start = time.monotonic()
        examples.close()
        thread.join(5)
        assert time.monotonic() - start < 15
    assert raised == ["these examples are closed"]


def test_a_process_that_dies_is_reported(folder):
    others = set(own_processes())
    with images(folder, processes=2) as examples:
        batch(examples, [0])
        os.kill(own_processes(others)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"^a decoding process has ended \(signal 9\)$"):
            batch(examples, list(range(8)))
        assert batch(examples, [0])["label"].shape == (1, BATCH)  # the next gather starts new ones


def test_a_decoding_process_imports_no_jax(folder):
    code = f"import sys, data.decoding.process as p; p.records.unpack({pack(b'', 0)!r}); print('jax' in sys.modules)"
    done = python("-c", code)
    assert done.stdout == "False\n", done.stderr


PROGRAM = """
import gc, os, signal, sys, numpy as np
from data import tfds_sets
from data.streams import open_images
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
gc.disable()  # JAX's hook of the collector loses a KeyboardInterrupt that comes in it
prepared = tfds_sets.open_set("imagenet2012", directory=sys.argv[1], kind=tfds_sets.IMAGES_OF_ANY_SIZE)
examples = open_images(prepared, "train", image_size=16, mode="training", processes=2)
examples.gather(np.arange(8)[None], np.array([0]))
try:
    print("ready", flush=True)
    while True:
        examples.gather(np.arange(30).repeat(20)[None], np.array([0]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = pathlib.Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_program(sent, folder):
    command = [sys.executable, "-c", PROGRAM, str(folder.parents[1])]
    program = subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True, start_new_session=True)
    pids: list[int] = []
    try:
        assert program.stdout.readline() == "ready\n"
        pids = decoding_processes(program.pid)
        assert len(pids) == 2 and all(map(alive, pids))
        if sent == signal.SIGINT:
            for pid in pids:  # what the terminal would send, if they were in its group, and what a scheduler sends
                for number in (sent, signal.SIGUSR1, signal.SIGUSR2):
                    os.kill(pid, number)
        os.killpg(program.pid, sent)
        out, err = program.communicate(timeout=20)
        if sent == signal.SIGINT:
            assert (out, err, program.returncode) == ("interrupted\n", "", 0)
        wait_for(lambda: not any(map(alive, pids)), 10)
        assert "Traceback" not in err
    finally:
        program.kill()
        program.communicate()
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_one_core_is_left_to_the_program(monkeypatch):
    for usable, count in ((1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=usable: set(range(n)), raising=False)
        assert default_processes() == count
