"""Data of one's own that come in batches, in an order of their own: runs, resumes, mistakes."""

import re

import numpy as np
import pytest

from data.iterators import Batches
from tests.in_process import keys, train_py
from tests.own_parts import folder
from tests.stepper import end_at, records, train_whole_and_in_parts, without_clock
from tests.test_docs import FILES
from training.checkpoints import restore_params

__all__ = ["folder"]  # a fixture

PARTS = (
    FILES["streamed.py"]
    + """

import sys, types

class Loader:
    '''As torchdata's StatefulDataLoader: what makes iterators has the state, with tensors, tuples and bytes in it.'''
    def __init__(self, passes):
        self.passes = passes
    def __iter__(self):
        passes = self.passes
        while True:
            yield next(passes)
    def state_dict(self):
        place = self.passes.get_state()["step"]
        return {"seen": np.arange(place), "more": (b"bytes", [None, 1.5, "text"]), 3: {"deep": np.int64(place)}}
    def load_state_dict(self, state):
        assert state["more"] == (b"bytes", [None, 1.5, "text"]) and state[3]["deep"] == len(state["seen"])
        self.passes.set_state({"step": len(state["seen"])})

def plain(passes):
    while True:
        yield next(passes)

KINDS = {
    "passes": lambda passes: passes,
    "loader": Loader,
    "generator": plain,
}

def wrong(passes, text):
    for number in range(10**6):
        batch = next(passes)
        yield eval(text, globals(), {"b": batch, "number": number, "x": batch["image"], "y": batch["label"]})

def ends(passes, count):
    for _ in range(count):
        yield next(passes)

def data(*, kind: str = "passes", text: str = "", count: int = 0, objects: str = "off") -> Source:
    found = digits(batch_size=32)
    def load(seed):
        dataset = found.load(seed)
        passes = Passes(seed=seed, batch_size=32)
        if objects == "on":
            passes.get_state = lambda: {"what": object()}
        batches = KINDS[kind](passes)
        batches = wrong(passes, text) if text else ends(passes, count) if count else batches
        return dataset._replace(train=Batches(batches, num_examples=dataset.train.num_examples))
    return found._replace(load=load)

def unmarked() -> Source:
    return data()._replace(reads="by_index")
"""
)

SMALL = keys("num_workers=4 batch_size_per_worker=8 ema_decay=None data.name=parts:data")
LENGTHS = keys("train_steps=12 eval_every_steps=6 checkpoint_every_steps=6 log_every_steps=1")
GIVEN = ("--config=config.py", "--num_devices=2", *SMALL, *LENGTHS)


def params_of(folder):
    return restore_params(folder, checkpoint="latest", trusted=["parts"])


def flat(params):
    return [leaf.tobytes() for layer in params.values() for leaf in layer.values()]


@pytest.mark.parametrize(
    ("kind", "says", "steps_per_call"), [("passes", False, 1), ("loader", False, 3), ("generator", True, 1)]
)
def test_a_run_goes_on_where_its_batches_do(kind, says, steps_per_call, folder, capsys):
    given = (*GIVEN, f"--config.data.kind={kind}", f"--steps_per_dispatch={steps_per_call}")
    train_whole_and_in_parts(given, folder, stop_after=3)
    assert flat(params_of(folder / "whole")) == flat(params_of(folder / "parts"))
    assert without_clock(folder / "whole") == without_clock(folder / "parts")
    assert ("reads past 3 batches" in capsys.readouterr().err) == says
    assert [record["epoch"] for record in records(folder / "whole")][-1] == pytest.approx(12 * 32 / 1437)


def test_a_worker_has_its_part_of_a_batch_on_every_layout(folder):
    """Adasum depends on which examples the workers share, unlike a mean."""
    for devices in (1, 4):
        given = [*(flag for flag in GIVEN if "num_devices" not in flag), "--config.reducer.name=adasum"]
        assert train_py(*given, f"--num_devices={devices}", f"--workdir={devices}") == 0
    one, four = (records(folder / str(devices)) for devices in (1, 4))
    assert [record["loss"] for record in one] == pytest.approx([record["loss"] for record in four], abs=1e-5)


def test_what_was_read_ahead_is_not_skipped(folder):
    """A run that is stopped has read batches ahead; the state that is saved is that of the step."""
    end_at(2, lambda: train_py(*GIVEN, "--workdir=run"))
    assert train_py(*GIVEN, "--workdir=run") == 0
    assert train_py(*GIVEN, "--workdir=whole") == 0
    assert without_clock(folder / "run") == without_clock(folder / "whole")


# ---- refusals ----------------------------------------------------------------------------------------------------

AT_LOAD = {
    "data.text=None": "data.train: a batch is None, must be a dict of arrays",
    "data.text=(x,y)": "data.train: a batch is a tuple, must be a dict of arrays",
    "data.text={'image':x}": "data.train: has 'image', and info declares 'image', 'label'",
    "data.text=b|{'image':x[...,0]}": r"data.train\['image'\]: each example is float32 of shape \(8, 8\)",
    "data.text=b|{'label':y+9}": r"data.train\['label'\]: has 1\d, must be in \[0, 9\]",
    "data.text={'image':x[1:],'label':y[1:]}": "a batch has 31 examples, must have 32",
    "batch_size_per_worker=4": "a batch has 32 examples, must have 16",
    "data.objects=on": "data.train: its state has a object, must have numbers",
    "data.name=parts:unmarked": "train: must be data.iterators.Batches with source_of_batches",
}
BEFORE = {
    "server.name=asynchronous arrivals.name=constant": "server.name='asynchronous': must be 'synchronous'",
    "split.name=dirichlet": "split.name='dirichlet': must be 'shuffled', since .* in order",
    "data.evaluate_on=validation": "data.evaluate_on: unknown key",
}


@pytest.mark.parametrize(("given", "said"), [*AT_LOAD.items(), *BEFORE.items()])
def test_what_cannot_be_used_is_refused_in_one_line(given, said, folder, capsys):
    assert train_py(*GIVEN, *keys(given), "--workdir=run") == 2
    found = capsys.readouterr()
    assert found.out == "" and "Traceback" not in found.err
    assert re.search(f"^config.*{said}", found.err.splitlines()[-1]), found.err
    assert (folder / "run").exists() == (given in AT_LOAD) and not (folder / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("data.count=7", "data.train: ends after 7 batches"),
        ("data.text=b|{'image':x[...,:number<5]}", r"data.train\['image'\]: each example is"),
    ],
)
def test_batches_that_end_or_change_end_the_run_in_one_line(given, said, folder, capsys):
    assert train_py(*GIVEN, *keys(given), "--workdir=run") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(f"^config.{said}", last) and "goes on from the last checkpoint" in last, last


def test_a_run_cannot_go_on_past_the_end(folder, capsys):
    given = (*GIVEN, "--config.data.count=13")
    end_at(6, lambda: train_py(*given, "--workdir=run"))
    capsys.readouterr()
    edited = (folder / "parts.py").read_text().replace("for _ in range(count)", "for _ in range(count - 9)")
    (folder / "parts.py").write_text(edited)
    assert train_py(*given, "--workdir=run", "--accept_code_change") == 2
    assert "data.train: ends after 4 batches" in capsys.readouterr().err.splitlines()[-1]


def test_tensors_come_back_as_tensors(monkeypatch):
    """A stand-in for PyTorch: a class of a module of its name, and the function that makes it of an array."""

    class Tensor:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return np.array(self.array, dtype)

    Tensor.__module__ = "torch"
    monkeypatch.setitem(__import__("sys").modules, "torch", type("torch", (), {"from_numpy": Tensor}))
    found = []

    class Loader:
        def __iter__(self):
            return iter([{"x": np.zeros(1)}] * 3)

        def state_dict(self):
            return {"generator": Tensor(np.arange(3, dtype=np.uint8))}

        def load_state_dict(self, state):
            found.append(state["generator"])

    batches = Batches(Loader(), num_examples=1).checked(lambda batch: None)
    batches.take()
    assert Batches(Loader(), num_examples=1).go_on(1, batches.state(1)) == ""
    assert isinstance(found[0], Tensor) and found[0].array.tolist() == [0, 1, 2]
