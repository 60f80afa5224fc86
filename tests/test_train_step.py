"""The step of a real config: layouts, lifts, compilations, collectives, and what each option of a config does."""

import functools
import math

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax import numpy as jnp

import reducers
from data.augment import as_inputs
from tests.cases import FIRST
from tests.grid import grid
from tests.in_process import keys
from tests.stepper import DATASET, Stepper, largest_difference, setup_of
from tests.test_own_optimizers import ROWS as OWN_OPTIMIZERS
from training import dry_run

# Other runs than those of the reducers' table: keys of the config.
MORE = {
    "delayed": """
        reducer.name=local_sgd reducer.every_steps=3 reducer.delay_steps=2 reducer.from_step=2
        reducer_on=updates clip_norm=1.0 ema_decay=None
    """,
    "local steps": """
        model.name=softmax accumulation.name=local_steps accumulation.count=2
        reducer_on=updates clip_norm=1.0
    """,
    "half precision": """
        model.name=softmax model.dtype=float16 reducer_on=updates
        loss_scaling.name=dynamic loss_scaling.initial_scale=1024 loss_scaling.growth_interval=3
        communication.name=half communication.initial_scale=64 communication.growth_interval=2
    """,
    **{name: f"optimizer.name={name} model.name=softmax ema_decay=None" for name in OWN_OPTIMIZERS},
}


def run_of(name, *more, **layout):
    flags = FIRST[name].flags if name in FIRST else keys(MORE[name])
    return Stepper(setup_of(*flags, *more), **layout).steps(0, 20 if name in FIRST else 8)


@functools.cache
def reference_of(name):
    return run_of(name)


def params_and_drift(run):
    host = run.host()
    return host.params, reducers.report(host.reducer_state).drift


# One layout for each run: the laws hold reducers to all of them on a small problem.
LAYOUTS = [
    (4, "pmap", None),
    (2, "shard_map", None),
    (1, "pmap", None),
    (2, "pmap", "dispatched"),
    (2, "shard_map", "vmap"),
]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("mean", layout) for layout in LAYOUTS),
        *((name, LAYOUTS[i % 5]) for i, name in enumerate([*reducers.REDUCERS, *MORE]) if name != "mean"),
    ],
)
def test_layouts_and_lifts_agree_and_replicas_are_bit_equal(name, layout):
    num_devices, lift, lanes = layout
    run = run_of(name, f"--config.mapping={lift}", num_devices=num_devices, lanes=lanes)
    expected = reference_of(name)
    tolerance = 2e-3 if name == "half precision" else 1e-6 if name in FIRST else 1e-5
    assert largest_difference(params_and_drift(run), params_and_drift(expected)) < tolerance
    if name not in FIRST and name not in OWN_OPTIMIZERS:  # whose optimizer has no state of a worker's own
        own, of_expected = (each.host().worker.opt_state for each in (run, expected))
        assert largest_difference(own, of_expected) < tolerance
    for scale in {"communication_scale", "loss_scale"} & run.metrics.keys():
        assert run.metrics[scale] == expected.metrics[scale] > {"communication_scale": 64, "loss_scale": 1024}[scale]
    for leaf in jax.tree.leaves(run.shared):
        assert all(np.array_equal(replica, np.asarray(leaf)[0]) for replica in np.asarray(leaf))


def test_streamed_and_resident_data_give_the_same_bits():
    run = Stepper(setup_of("--config.data.placement=stream")).steps(0, 20)
    assert largest_difference(run.params(), reference_of("mean").params()) == 0


def test_seed_changes_parameters_and_order():
    one, other = (setup_of(f"--config.seed={seed}") for seed in (0, 1))
    assert largest_difference(*(jax.jit(p.init_worker)().params for p in (one, other))) > 0.1
    orders = [setup.example_order(DATASET).indices(0, num_batches=8) for setup in (one, other)]
    assert not np.array_equal(*orders)


@pytest.mark.parametrize(
    ("lift", "lanes"),
    grid(["pmap", "shard_map"], ["vmap", "dispatched"], quick={("pmap", "vmap"), ("shard_map", "dispatched")}),
)
def test_only_the_first_step_compiles(lift, lanes, compilations):
    run = Stepper(setup_of(f"--config.mapping={lift}"), num_devices=4, lanes=lanes).steps(0, 1)
    before = len(compilations)
    run.steps(1, 5)
    assert len(compilations) == before
    run.steps(0, 1)
    jax.jit(lambda x: x + 1)(np.zeros(3))
    assert len(compilations) > before  # the counter counts


@pytest.mark.parametrize("num_devices", [8, 2])
def test_mean_all_reduces_once_for_small_leaves_and_once_for_the_metrics(num_devices):
    run = Stepper(setup_of(), num_devices=num_devices)
    lowered, _ = run.step.lower(*run.shapes())["step"]
    text = lowered.as_text()
    assert len(jax.tree.leaves(run.state.params)) > 2
    assert text.count("stablehlo.all_reduce") == 2
    for other in ("all_gather", "all_to_all", "reduce_scatter", "collective_permute"):
        assert f"stablehlo.{other}" not in text
    assert lowered.compile().as_text().count(" all-reduce(") <= 2


def test_reducing_updates_of_sgd_equals_reducing_gradients():
    run = Stepper(setup_of("--config.reducer_on=updates")).steps(0, 20)
    assert largest_difference(run.params(), reference_of("mean").params()) < 1e-6
    momentum = [leaf for leaf in jax.tree.leaves(run.host().worker.opt_state) if leaf.ndim > 1]
    assert momentum and all(len(leaf) == 8 and not np.array_equal(leaf[0], leaf[1]) for leaf in momentum)


def test_clipping_is_of_each_worker_before_the_reduction():
    clip = 0.01
    run = Stepper(setup_of(f"--config.clip_norm={clip}", "--config.reducer.name=sum")).steps(3, 4)
    assert run.metrics["gradient_norm"] > clip  # as computed, before the clipping
    assert clip < run.metrics["reduced_norm"] <= 8 * clip * (1 + 1e-6)  # a clipped sum would be at most clip


def test_moving_average_follows_its_rule():
    run = Stepper(setup_of("--config.ema_decay=0.9"))
    average = run.host().params
    for step in range(4):
        params = run.steps(step, step + 1).params()
        decay = min(0.9, (2 + step) / (11 + step))
        average = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, average, params)
    assert largest_difference(run.host().ema, average) < 1e-6


def test_learning_rate_rules():
    constant = "model.name=softmax schedule.name=constant"
    setups = [setup_of(*keys(f"{constant} learning_rate_scaling={rule}")) for rule in ("none", "linear", "sqrt")]
    rates = [setup.learning_rate(0) for setup in setups]
    np.testing.assert_allclose(rates, [0.02, 0.16, 0.02 * 8**0.5], rtol=1e-6)
    assert Stepper(setups[-1]).steps(0, 1).metrics["learning_rate"] == pytest.approx(rates[-1])


def test_model_state_is_of_each_worker_and_averaged_for_evaluation():
    evaluated = []
    for num_devices in (8, 4):
        run = Stepper(setup_of("--config.model.name=tests.stepper:Normalised"), num_devices=num_devices).steps(0, 3)
        means = run.host().worker.model_state["batch_stats"]["BatchNorm_0"]["mean"]
        assert len(means) == 8 and not np.array_equal(means[0], means[1])
        quality = run.evaluate()
        evaluated.append(quality)
        state = run.host()
        model_state = jax.tree.map(lambda x: x.mean(0), state.worker.model_state)
        sums = run.setup.task.evaluate(state.ema, model_state, all_test_inputs(), jnp.ones(360))
        assert quality["accuracy"] == pytest.approx(float(sums["correct"]) / 360)
        assert quality["loss"] == pytest.approx(float(sums["loss"]) / 360, rel=1e-5)
    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-5)


def all_test_inputs():
    return as_inputs({name: jnp.asarray(x) for name, x in DATASET.test.columns.items()}, DATASET.constants)


@pytest.mark.parametrize("eval_batch_size", [7, 64, 5000])
def test_evaluation_is_exact_for_any_batch(eval_batch_size):
    run = Stepper(setup_of(f"--config.eval_batch_size={eval_batch_size}"))
    quality = run.evaluate()
    params = run.host().ema
    sums = run.setup.task.evaluate(params, {}, all_test_inputs(), jnp.ones(360))
    assert quality["accuracy"] == float(sums["correct"]) / 360
    assert quality["loss"] == pytest.approx(float(sums["loss"]) / 360, rel=1e-6)


@pytest.mark.parametrize("num_devices", [8, 64, 1])
def test_dry_run_for_any_number_of_devices(num_devices):
    setup = setup_of("--config.num_workers=64")
    said = dry_run.describe(setup, num_devices=num_devices)
    shape = {1: "1 device x 64 lanes", 8: "8 devices x 8 lanes", 64: "64 devices x 1 lane"}
    assert f"64 workers = {shape[num_devices]}\n" in said
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(setup.worker_shapes.params))
    assert f"{count:,}" in said and f"{2 * 4 * count * 63 / 64:,.0f}" in said
    assert ("FLOP" in said) == (num_devices <= 8)


def test_dry_run_rejects_a_step_that_does_not_reduce(monkeypatch):
    monkeypatch.setitem(reducers.REDUCERS, "mean", lambda axis_name: optax.with_extra_args_support(optax.identity()))
    with pytest.raises(ValueError, match="out_axes"):
        dry_run.describe(setup_of())


class Drawn(nn.Module):
    """A model whose state is a number drawn from the dropout key, or 0 before the first step."""

    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        drawn = self.variable("batch_stats", "drawn", jnp.zeros, ())
        if not deterministic:
            drawn.value = jax.random.uniform(self.make_rng("dropout"))
        return nn.Dense(self.num_classes)(image.reshape(image.shape[0], -1))


def test_every_worker_and_every_step_has_dropout_of_its_own():
    run = Stepper(setup_of("--config.model.name=tests.test_train_step:Drawn"), num_devices=4)
    drawn = []
    for step in range(3):
        drawn += run.steps(step, step + 1).host().worker.model_state["batch_stats"]["drawn"].tolist()
    assert len(set(drawn)) == 3 * 8
