"""Schedules against tables worked out by hand, at the start, the boundaries and the end."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optim import factors, schedules
from reducers import registry
from tests.refused import refused

RUN = {"total_steps": 10, "steps_per_epoch": 5.0}


def table(block, steps=range(11), **run):
    factor = schedules.make(block, **{**RUN, **run})
    return [float(factor(step)) for step in steps]


C = [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(9)]
ROOT = [math.sqrt(1 - p / 10) for p in range(11)]
TABLES = [
    # block, factors at steps 0 to 10 of 10 (the last one is past the run)
    ({"name": "constant"}, [1] * 11),
    ({"name": "constant", "value": 0.5}, [0.5] * 11),
    # PyTorch's OneCycleLR(max_lr=1, total_steps=10, pct_start=0.3, "linear", div_factor=inf): peak at step 2, 0 at 9
    ({"name": "one_cycle"}, [0, 1 / 2, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7, 0, 0]),
    # a peak between steps, at 1.5
    ({"name": "one_cycle", "warmup_fraction": 0.25}, [0, 2 / 3, *(k / 7.5 for k in (7, 6, 5, 4, 3, 2, 1, 0)), 0]),
    ({"name": "one_cycle", "warmup_fraction": 0.0}, [k / 10 for k in range(9, -1, -1)] + [0]),
    ({"name": "one_cycle", "warmup_fraction": 1.0}, [k / 9 for k in range(10)] + [1]),
    ({"name": "warmup_cosine", "warmup_steps": 2}, [0, 0.5, *C]),
    ({"name": "warmup_cosine", "warmup_epochs": 0.4, "end_factor": 0.2}, [0, 0.5, *(0.2 + 0.8 * c for c in C)]),
    ({"name": "warmup_linear", "warmup_steps": 2}, [0, 0.5, *(k / 8 for k in range(8, -1, -1))]),
    ({"name": "warmup_linear", "warmup_steps": 0}, [k / 10 for k in range(10, -1, -1)]),
    ({"name": "warmup_linear", "warmup_steps": 10}, [k / 10 for k in range(10)] + [0]),
    ({"name": "warmup_linear", "warmup_epochs": 1, "end_factor": 0.5},
     [0, 0.2, 0.4, 0.6, 0.8, 1, 0.9, 0.8, 0.7, 0.6, 0.5]),
    # NVIDIA's BERT: progress (t + 1) / T; from 0.3 on the decay, counted from the start: a jump at step 2
    ({"name": "polynomial_warmup", "warmup_fraction": 0.3, "degree": 0.5}, [1 / 3, 2 / 3, *ROOT[3:], 0]),
    ({"name": "polynomial_warmup"}, [k / 10 for k in range(9, -1, -1)] + [0]),
    ({"name": "staircase", "every_epochs": 0.6}, [0.94 ** (t // 3) for t in range(11)]),
    ({"name": "staircase", "every_steps": 4, "decay_factor": 0.5}, [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
    ({"name": "staircase", "every_epochs": 1e38}, [1] * 11),
    ({"name": "staircase"}, [1] * 10 + [0.94]),  # every 2 epochs, here every 10 steps
    ({"name": "staircase", "every_epochs": 0.5}, [0.94 ** int(t / 2.5) for t in range(11)]),
    ({"name": "steps", "at_steps": (3, 7)}, [1] * 3 + [0.1] * 4 + [0.01] * 4),
    ({"name": "steps", "at_epochs": (1, 1.5), "decay_factor": 0.5}, [1] * 5 + [0.5] * 3 + [0.25] * 3),
    ({"name": "steps", "at_epochs": (1.0,), "warmup_epochs": 0.4, "init_factor": 0.5},
     [0.5, 0.75, 1, 1, 1] + [0.1] * 6),
    ({"name": "steps", "at_steps": (1,), "warmup_steps": 2, "init_factor": 0.0}, [0, 0.05] + [0.1] * 9),
    ({"name": "exponential_to"}, [0.1 ** (t / 10) for t in range(11)]),
    ({"name": "exponential_to", "beta": 2.5}, [0.5 ** (t / 5) for t in range(11)]),
    # optax's, by name
    ({"name": "constant_schedule"}, [1] * 11),
    ({"name": "cosine_decay_schedule", "decay_steps": 8}, [*C, 0, 0]),
    ({"name": "cosine_decay_schedule", "decay_epochs": 1.6, "alpha": 0.1}, [0.9 * c + 0.1 for c in C] + [0.1, 0.1]),
    ({"name": "linear_schedule"}, [k / 10 for k in range(10, -1, -1)]),  # the whole run
    ({"name": "linear_schedule", "transition_begin": 2}, [1, 1, *(k / 8 for k in range(8, -1, -1))]),  # what is left
    ({"name": "linear_schedule", "transition_begin_epochs": 0.4, "transition_steps": 4},
     [1, 1, 1, 0.75, 0.5, 0.25] + [0] * 5),
    ({"name": "exponential_decay", "decay_rate": 0.25, "transition_epochs": 0.4}, [0.5**t for t in range(11)]),
    ({"name": "polynomial_schedule", "power": 2.0}, [(k / 10) ** 2 for k in range(10, -1, -1)]),
    ({"name": "warmup_constant_schedule", "warmup_steps": 4}, [0, 0.25, 0.5, 0.75] + [1] * 7),
    ({"name": "warmup_cosine_decay_schedule", "warmup_epochs": 0.4}, [0, 0.5, *C]),
    ({"name": "warmup_exponential_decay_schedule", "warmup_steps": 2, "decay_rate": 0.5},
     [0, 0.5, *(0.5 ** (k / 8) for k in range(9))]),
    ({"name": "linear_onecycle_schedule", "pct_start": 0.5, "pct_final": 0.8, "div_factor": 2.0},
     [0.5, 0.6, 0.7, 0.8, 0.9, 1, 5 / 6, 4 / 6, 0.5, 0.250025, 0.00005]),
    ({"name": "cosine_onecycle_schedule", "pct_start": 0.5, "div_factor": 2.0},
     [*(0.75 - 0.25 * math.cos(math.pi * k / 5) for k in range(6)),
      *(0.500025 + 0.499975 * math.cos(math.pi * k / 5) for k in range(1, 6))]),
]  # fmt: skip


@pytest.mark.parametrize(("block", "wanted"), TABLES)
def test_table(block, wanted):
    """Step by step, and traced, in float32."""
    np.testing.assert_allclose(table(block), wanted, atol=3e-7)
    factor = schedules.make(block, **RUN)
    np.testing.assert_allclose(jax.vmap(factor)(jnp.arange(11)), wanted, atol=3e-7)
    traced = jax.jit(factor)(jnp.int32(3))
    assert traced.dtype == factor(3).dtype == jnp.float32 and traced.shape == () and not traced.weak_type


def test_every_schedule_has_a_table():
    assert {block["name"] for block, _ in TABLES} == set(schedules.SCHEDULES)


def test_every_optax_schedule_is_reachable_or_refused_with_a_reason():
    ours = set(schedules.SCHEDULES) | set(schedules.UNFIT)
    found = {name for name in vars(optax) if name.endswith("_schedule")} - {"scale_by_schedule"}
    assert found | {"exponential_decay", "join_schedules"} <= ours
    for name, reason in schedules.UNFIT.items():
        with pytest.raises(ValueError, match=f"^name='{name}': {reason}"):
            schedules.SCHEDULES.find(name)


@pytest.mark.parametrize("name", sorted(schedules.SCHEDULES))
def test_lengths_are_in_steps_or_epochs(name):
    parameters = schedules.SCHEDULES.parameters(name)
    for key, parameter in parameters.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert registry.plain_type(parameter.annotation) in (int, float, bool, str, tuple), key
        if key.endswith("_steps") and key != "at_steps":
            assert registry.is_optional(parameter.annotation) and f"{key[:-6]}_epochs" in parameters


def test_no_drift_in_long_runs():
    total = 1_000_000
    run = {"total_steps": total, "steps_per_epoch": 1000 / 3}
    steps = np.array([0, 1, 333_333, 499_999, 500_000, 899_999, 999_999])
    linear = schedules.make({"name": "warmup_linear", "warmup_steps": 0}, **run)
    np.testing.assert_allclose(linear(jnp.asarray(steps)), (total - steps) / total, rtol=2e-7)
    cycle = schedules.make({"name": "one_cycle", "warmup_fraction": 0.5}, **run)
    wanted = np.minimum(steps / 499_999, (total - 1 - steps) / 500_000)
    np.testing.assert_allclose(cycle(jnp.asarray(steps)), wanted, rtol=2e-7)
    stairs = schedules.make({"name": "staircase", "every_epochs": 30.0, "decay_factor": 0.99}, **run)
    boundaries = np.arange(1, 100) * 10_000  # 30 epochs of 333.33 steps
    np.testing.assert_array_equal(stairs(jnp.asarray(boundaries)), (0.99 ** np.arange(1, 100)).astype(np.float32))
    np.testing.assert_array_equal(stairs(jnp.asarray(boundaries - 1)), (0.99 ** np.arange(99)).astype(np.float32))


def test_epochs_that_are_whole_in_decimals_are_whole_in_steps():
    for epochs, factors_of_10_to_12 in ((1.1, [1, 0.1, 0.1]), (1.11, [1, 1, 0.1])):
        found = table({"name": "steps", "at_epochs": (epochs,)}, (10, 11, 12), steps_per_epoch=10.0)
        assert found == pytest.approx(factors_of_10_to_12)


@pytest.mark.parametrize("epochs", [1e9, 1e300])
def test_a_length_past_all_counts_of_steps_is_one_more(epochs):
    assert factors.first_step_at(epochs, steps_per_epoch=1e9) == factors.MAX_STEPS + 1


def test_lengths_past_all_counts_of_steps_are_never_over():
    dropped = table({"name": "steps", "at_epochs": (2.0, 1e12)}, (9, 10, 2**31 - 2))
    assert dropped == pytest.approx([1, 0.1, 0.1])
    assert table({"name": "linear_schedule", "transition_epochs": 1e12}, (7,)) == [1]


REFUSED = [
    ({"name": "cosine"}, "name='cosine': unknown name; "),
    ({"name": "one_cycel"}, "name='one_cycel': unknown name; did you mean 'one_cycle'"),
    ({"name": "sgd"}, "name='sgd': unknown name"),
    ({}, "name: missing"),
    ({"name": "constant", "valeu": 1.0}, "valeu: unknown key; did you mean 'value'"),
    ({"name": "constant", "value": float("nan")}, "value=nan: must be float in"),
    ({"name": "constant", "value": -1.0}, "value=-1.0: must be float in"),
    ({"name": "constant", "total_steps": 5}, "total_steps: unknown key; allowed: value"),
    ({"name": "cosine_decay_schedule", "decay_steps": 5, "decay_epochs": 1.0},
     "decay_steps=5, decay_epochs=1.0: give one"),
    ({"name": "cosine_decay_schedule", "decay_steps": 0}, "decay_steps=0: must be int in "),
    ({"name": "cosine_decay_schedule", "decay_steps": 2.5}, "decay_steps=2.5: must be int in "),
    ({"name": "exponential_decay"}, "decay_rate: missing"),
    ({"name": "cosine_onecycle_schedule", "pct_start": 1.0}, r"pct_start=1.0: must be float in \[0, 1\)"),
    ({"name": "linear_onecycle_schedule", "pct_start": 0.9}, "pct_start=0.9: must be below pct_final=0.85"),
    ({"name": "linear_onecycle_schedule", "pct_final": 0.3}, "pct_start=0.3: must be below pct_final=0.3"),
    ({"name": "linear_schedule", "transition_begin": 10}, "transition_steps=None: nothing of the 10 steps is left"),
    ({"name": "warmup_cosine_decay_schedule"}, "warmup_steps=None, warmup_epochs=None: give one"),
    ({"name": "warmup_cosine_decay_schedule", "warmup_steps": 10}, "warmup_steps=10: must be below decay_steps=10"),
    ({"name": "warmup_cosine"}, "warmup_steps=None, warmup_epochs=None: give one"),
    ({"name": "warmup_cosine", "warmup_steps": 1, "warmup_epochs": 1.0}, "warmup_steps=1, warmup_epochs=1.0: give one"),
    ({"name": "warmup_cosine", "warmup_steps": 11}, "warmup_steps=11: longer than the run of 10 steps"),
    ({"name": "warmup_linear", "warmup_epochs": 2.1}, "warmup_epochs=2.1: longer than the run of 10 steps"),
    ({"name": "warmup_linear", "warmup_steps": -1}, "warmup_steps=-1: must be int in "),
    ({"name": "warmup_linear", "warmup_steps": 1, "end_factor": 2.0}, r"end_factor=2.0: must be float in \[0, 1\]"),
    ({"name": "one_cycle", "warmup_fraction": 1.5}, r"warmup_fraction=1.5: must be float in \[0, 1\]"),
    ({"name": "polynomial_warmup", "degree": 0.0}, "degree=0.0: must be float in"),
    ({"name": "staircase", "every_steps": 1, "every_epochs": 1.0}, "every_steps=1, every_epochs=1.0: give one"),
    ({"name": "staircase", "every_steps": 0}, "every_steps=0: must be int in"),
    ({"name": "staircase", "decay_factor": 0.0}, "decay_factor=0.0: must be float in"),
    ({"name": "steps"}, r"at_steps=\(\), at_epochs=\(\): give one"),
    ({"name": "steps", "at_steps": (1,), "at_epochs": (1.0,)}, r"at_steps=\(1,\), at_epochs=\(1.0,\): give one"),
    ({"name": "steps", "at_steps": (5, 3)}, r"at_steps=\(5, 3\): must be above 0 and increase"),
    ({"name": "steps", "at_epochs": (0.0,)}, r"at_epochs=\(0.0,\): must be above 0 and increase"),
    ({"name": "steps", "at_steps": (1, "2")}, r"at_steps=\(1, '2'\): must be a tuple of int"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "message"), REFUSED)
def test_refused_in_one_line(block, message):
    with refused(ValueError, f"^{message}"):
        schedules.make(block, **RUN)
