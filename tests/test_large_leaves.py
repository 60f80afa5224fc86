"""Leaves of 2^31 numbers and more, by their shapes alone: every reducer and encoding takes them, or says why not."""

import jax
import pytest
from jax import numpy as jnp

import reducers
from reducers.wrappers import communication
from tests.cases import CASES, SENDINGS
from tests.in_process import DIGITS, train_py
from tests.refused import line_of, refused
from tests.test_reducers import NAMES

TREES = {
    "vector": {"w": jax.ShapeDtypeStruct((2**31 + 8,), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.float32)},
    "matrix": {"w": jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32)},
    "together": {f"w{i}": jax.ShapeDtypeStruct((2**30,), jnp.float32) for i in range(3)},
}
SENDS_PLACES = ("top_k", "random_k")


def rows(names):
    for tree in TREES:
        for place, name in enumerate(names):
            yield pytest.param(tree, place, id=f"{tree}-{name}-{place}")


@pytest.mark.parametrize(("tree", "place"), list(rows(NAMES)))
def test_every_reducer_takes_them(tree, place):
    case = CASES[place]
    reducer = reducers.make(case.name, axis_name="worker", **case.kwargs)
    assert reducers.traffic(reducer, TREES[tree], axis_sizes={"worker": 8}, **case.shared).bytes_per_worker > 0


@pytest.mark.parametrize(("tree", "place"), list(rows([sending.name for sending in SENDINGS])))
def test_every_encoding_takes_them_or_names_the_leaf(tree, place):
    sending = SENDINGS[place]
    mean = reducers.mean("worker")
    reducer = communication.make(sending.name, reducer=mean, axis_name="worker", **sending.options)

    def sent():
        return reducers.traffic(reducer, TREES[tree], axis_sizes={"worker": 8}).bytes_per_worker

    if sending.name in SENDS_PLACES and tree != "together":
        said = rf"name={sending.name!r}.*cannot send 'w' of \d+ numbers, must be at most 2147483647"
        with refused(ValueError, said):
            sent()
    else:
        assert sent() > 0


def test_a_dry_run_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--config.model.hidden_sizes=(70000,70000)", "--config.communication.name=top_k"]
    assert train_py(f"--config={DIGITS}", *flags, "--dry_run", "--nodry_run_compile") == 2
    line = line_of(capsys)
    assert "config.communication.name='top_k'" in line and "of 4900000000 numbers" in line
