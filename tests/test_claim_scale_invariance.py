"""The claim about networks without a scale."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims.scale_invariance import claim, training
from reducers.dtypes import mixing_dtypes
from tests.claim_rows import FAILS, HOLDS, ORIGIN, UNTESTED

CLAIM = claim.CLAIM


@pytest.mark.parametrize("form", claim.FORMS)
def test_scales_and_rates_that_belong_together_train_an_invariant_network_alike(form):
    """The rate grows with the square of the parameters' scale, and falls with that of the loss."""
    of = training.task("transformer", form, split="validation")
    same = [(0.1, 1.0, 1.0), (0.1 * 10**2, 10.0, 1.0), (0.1 / 8, 1.0, 8.0), (0.1 * 10**2 * 8, 10.0, 1 / 8)]
    lanes = [(which, *lane) for which in range(3) for lane in same]  # Adam's step has a length of its own
    given = {"model": of.model, "pattern": of.kernels, "steps": 5, "batch": 8}
    with jax.numpy_rank_promotion("allow"):
        run = mixing_dtypes(training.end_losses)
        found = run(jnp.array(lanes, jnp.float32), jax.random.key(0), of.train, of.held_out, **given)
    found = np.array(found).reshape(3, len(same))
    apart = np.abs(found - found[:, :1]).max(axis=1)
    assert (apart < 1e-4).all() if form == "on" else (apart > 5e-3).all()
    assert abs(found[0, 0] - found[1, 0]) > 1e-2  # decay changes something


def rows(scales, *, learned=1.0, guess=4.0):
    """Rows in which losses at one scale are off by ``scales``: (form, optimizer) -> the amount in nats."""
    made = []
    for _ in range(2):
        have = {row["run"] for row in made}
        for run in CLAIM.runs("laptop", made):
            labels = run.labels
            if run.name in have:
                continue
            found = {}
            for i, name in enumerate(training.OPTIMIZERS):
                if labels["split"] == claim.TUNING:
                    found[name] = [2.0 + 0.01 * labels["seed"] + abs(place - 1 - i) for place in range(6)]
                else:
                    found[name] = [learned + 0.01 * labels["seed"]] * len(claim.PAIRS)
                    off = scales.get((labels["form"], name), 0.05)
                    found[name][0] = None if off is None else found[name][0] + off + 0.001 * labels["seed"] ** 2
            origin = {**ORIGIN, "scale": "laptop"}
            made.append({"run": run.name, "guess": guess, **found, **labels, "origin": origin})
    return made


def test_reported_runs_have_the_rates_that_tuning_runs_found():
    first = CLAIM.runs("laptop", [])
    assert {run.labels["split"] for run in first} == {"validation"}
    made = rows({})
    tests = [row for row in made if row["split"] == "test"]
    assert len(tests) == 2 * 2 * 5 and not {row["seed"] for row in tests} & {run.labels["seed"] for run in first}
    at = {name: 1 + i for i, name in enumerate(training.OPTIMIZERS)}
    assert all(row[claim.place_of(name)] == place for row in tests for name, place in at.items())


@pytest.mark.parametrize(
    ("scales", "learned", "word"),
    [
        ({("on", "adam"): 0.2, ("off", "relative_clip"): 2.0}, 1.0, HOLDS),
        ({("on", "adam"): 0.2, ("off", "relative_clip"): None}, 1.0, HOLDS),  # counts as a guess
        ({("on", "adam"): 0.2, ("off", "relative_clip"): 0.3}, 1.0, FAILS),
        ({("on", "adam"): 0.01, ("off", "relative_clip"): 2.0}, 1.0, FAILS),
        ({("on", "adam"): 0.05, ("off", "relative_clip"): 2.0}, 1.0, UNTESTED),
        ({("on", "adam"): 0.2, ("off", "relative_clip"): 2.0}, 3.0, UNTESTED),
    ],
)
def test_the_spread_decides(scales, learned, word):
    assert CLAIM.verdict(rows(scales, learned=learned)).word == word


def test_no_loss_counts_as_more_than_a_guess():
    (row, *_) = [row for row in rows({("off", "adam"): 1e9}) if row["split"] == "test" and row["form"] == "off"]
    df = CLAIM.frame([row])
    assert df[df["optimizer"] == "adam"]["spread"].item() == pytest.approx(row["guess"] - row["adam"][1])
