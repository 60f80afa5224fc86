"""Leaves of 2^31 numbers and more, by their shapes alone: every reducer and encoding takes them, or says why not."""

import jax
import pytest
from jax import numpy as jnp

import reducers
from tests.cases import ROWS
from tests.in_process import DIGITS, train_py
from tests.refused import line_of, refused

TREES = {
    "vector": {"w": jax.ShapeDtypeStruct((2**31 + 8,), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.float32)},
    "matrix": {"w": jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32)},
    "together": {f"w{i}": jax.ShapeDtypeStruct((2**30,), jnp.float32) for i in range(3)},
}
SENDS_PLACES = ("top_k", "random_k")


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_each_takes_them_or_names_the_leaf(row, tree):
    reducer = row.make("worker")

    def sent():
        return reducers.traffic(reducer, tree, axis_sizes={"worker": 8}, **row.shared).bytes_per_worker

    if row.name in SENDS_PLACES and len(tree) < 3:
        with refused(ValueError, rf"^name='{row.name}': cannot send 'w' of \d+ numbers, must be at most 2147483647"):
            sent()
    else:
        assert sent() > 0


def test_a_dry_run_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--config.model.hidden_sizes=(70000,70000)", "--config.communication.name=top_k"]
    assert train_py(f"--config={DIGITS}", *flags, "--dry_run", "--nodry_run_compile") == 2
    line = line_of(capsys)
    assert "config.communication.name='top_k'" in line and "of 4900000000 numbers" in line
