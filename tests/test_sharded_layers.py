"""Layers that no device holds whole: ``sharded_over`` gives what the rules make of the whole gradients."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import reducers
import tensor_parallel as tp
from reducers import encodings
from reducers.wrappers import communication
from tests.cases import FIRST
from tests.grid import grid
from tests.refused import refused
from tests.test_shard_map import mesh_of
from tests.test_tensor_parallel import BLOCK

RULES = [name for name in reducers.REDUCERS if "granularity" in reducers.REDUCERS.parameters(name)]
BY_MODEL = {"kernel": P(None, "model"), "bias": P(), "table": P("model"), "scale": P()}
PATTERNS = {"kernel|table": ("model",), "": ()}
MASK = np.array([True, True, False, True])


def made(name, axis_name="worker", **options):
    return reducers.make(name, axis_name=axis_name, **{**FIRST[name].kwargs, **options})


def gradients(num_workers=4):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (6, 8), "bias": (5,), "table": (8, 3), "scale": ()}
    common = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {
        name: jnp.asarray(rng.standard_normal((num_workers, *shape)) + common[name], jnp.float32)
        for name, shape in shapes.items()
    }


def updates_of(reducer, g, extra, steps):
    state, found = reducer.init(g), []
    for step in range(steps):
        result, state = reducer.update(jax.tree.map(lambda x: (1 + step) * x, g), state, **extra)  # noqa: B023
        found.append(result)
    report = reducers.report(state)
    return found, report.metrics, jnp.array(True) if report.counted is None else report.counted


def whole(reducer, g, *, steps=1, **extra):
    own = {key: jnp.asarray(value) for key, value in extra.items()}
    one = lambda g, own: updates_of(reducer, g, own, steps)  # noqa: E731
    return jax.jit(jax.vmap(one, axis_name="worker"))(g, own)


def cut(reducer, g, *, axes, specs=BY_MODEL, check_vma=True, steps=1, **extra):
    """Returns what ``whole`` does, of workers along the first of the axes (name -> size) whose leaves are cut."""

    def one(g, own):
        g, own = jax.tree.map(lambda x: jnp.squeeze(x, 0), (g, own))
        found, metrics, counted = updates_of(reducer, g, own, steps)
        return found, *jax.tree.map(lambda x: x[None], (metrics, counted))

    own = {key: jnp.asarray(value) for key, value in extra.items()}
    in_specs = {name: P("worker", *spec) for name, spec in specs.items()}, P("worker")
    out_specs = [specs] * steps, P("worker"), P("worker")
    options = {"mesh": mesh_of(**axes), "in_specs": in_specs, "out_specs": out_specs, "check_vma": check_vma}
    return jax.jit(jax.shard_map(one, **options))(g, own)


def same(found, expected, *, tolerance=1e-6):
    """Compares with the results of all workers of ``whole``, which are alike."""
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected[0]), strict=True):
        largest = np.abs(b[0], where=np.isfinite(b[0]), out=np.zeros_like(b[0])).max()
        np.testing.assert_allclose(a, b[0], rtol=0, atol=tolerance * largest)
    assert found[1].keys() == expected[1].keys()
    for name in found[1]:
        np.testing.assert_allclose(found[1][name], expected[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(found[2], expected[2])


def both_ways(name):
    """Two rows for a rule, which touch every value of the other parameters."""
    quick = {("krum", 2, "model", False), ("radial_directional", 4, "layer", True)}
    rows = ((name, 2, "model", False), (name, 2 if "krum" in name else 4, "layer", True))  # Krum needs four workers
    return [pytest.param(*row, marks=() if row in quick else pytest.mark.slow) for row in rows]


@pytest.mark.parametrize(
    ("name", "parts", "granularity", "check_vma"),
    [("adasum", 2, "layer", True), *itertools.chain.from_iterable(map(both_ways, RULES))],
)
def test_rules_are_those_of_whole_layers(name, parts, granularity, check_vma):
    workers = min(4, 8 // parts)
    options = {"granularity": granularity, "telemetry": "on"}
    g = gradients(workers)
    extra = {"contributes": MASK} if workers == 4 and name not in ("krum", "multi_krum") else {}
    over = ("model",) if check_vma else PATTERNS  # found from the types, or told by patterns
    axes = {"worker": workers, "model": parts}
    found = cut(made(name, sharded_over=over, **options), g, axes=axes, check_vma=check_vma, **extra)
    same(found, whole(made(name, **options), g, **extra))


def on_lanes(reducer, g, *, parts):
    """Two devices of two workers each, whose leaves are cut."""
    update = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="lane", out_axes=None)
    in_specs = {name: P("device", *spec) for name, spec in BY_MODEL.items()}
    specs = {"in_specs": (in_specs,), "out_specs": BY_MODEL, "check_vma": False}
    mapped = jax.shard_map(update, mesh=mesh_of(device=2, model=parts), **specs)
    return jax.jit(mapped)(g)


@pytest.mark.parametrize(("name", "parts"), grid(("adasum", "krum", "mgda", "pcgrad"), (2, 4), quick={("adasum", 2)}))
def test_workers_on_lanes(name, parts):
    g = gradients(4)
    found = on_lanes(made(name, ("device", "lane"), sharded_over=PATTERNS), g, parts=parts)
    expected = whole(made(name), g)[0][0]
    for key in g:
        np.testing.assert_allclose(found[key], expected[key][0], atol=1e-6 * np.abs(expected[key][0]).max(), rtol=0)


def test_a_copy_that_counts_twice_is_found():
    g, axes = gradients(4), {"worker": 4, "model": 2}
    expected = whole(made("adasum", granularity="model"), g)
    adasum = functools.partial(made, "adasum", granularity="model")
    same(cut(adasum(sharded_over=PATTERNS), g, axes=axes, check_vma=False), expected)
    with pytest.raises(AssertionError, match="Not equal"):
        same(cut(adasum(sharded_over={"": "model"}), g, axes=axes, check_vma=False), expected)
    with pytest.raises(AssertionError, match="Not equal"):  # nothing is summed
        same(cut(adasum(sharded_over=()), g, axes=axes, check_vma=False), expected)


def test_adasum_of_a_block_is_that_of_the_whole_block():
    """Two workers of 1 x 2 x 2 devices: a transformer block that no device holds whole."""
    mesh = tp.make_mesh(q=2, num_workers=2)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 5, 8)), jnp.float32)
    mask = jnp.tril(jnp.ones((5, 5), bool))
    init = jax.jit(functools.partial(BLOCK.init, deterministic=True))
    params = init(jax.random.key(0), x, mask[None, None])["params"]
    reducer = reducers.adasum("worker", granularity="layer", telemetry="on", sharded_over=("row", "column"))

    def one(params, x):
        own = reducers.per_worker(params, "worker")
        gradient = jax.grad(lambda p: jnp.sum(tp.block(x, p, num_heads=2, mask=mask) ** 2))(own)
        result, state = reducer.update(gradient, reducer.init(params))
        return result, reducers.report(state).metrics

    cuts = jax.tree.map(tp.param_spec, params)
    in_specs = cuts, P(("worker", "depth", "row"), None, "column")
    found, metrics = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=in_specs, out_specs=(cuts, P())))(params, x)

    dense = reducers.adasum("worker", granularity="layer", telemetry="on")
    loss = lambda p, x: jnp.sum(BLOCK.apply({"params": p}, x, mask[None, None], deterministic=True) ** 2)  # noqa: E731

    def one_alone(x):
        gradient = jax.grad(loss)(params, x)
        result, state = dense.update(gradient, dense.init(gradient))
        return result, reducers.report(state).metrics

    expected, dense_metrics = jax.jit(jax.vmap(one_alone, axis_name="worker"))(x.reshape(2, 4, 5, 8))
    del found["attention"]["key"]["bias"], expected["attention"]["key"]["bias"]  # rounding noise, whose gradient is 0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=0, atol=1e-5 * np.abs(b[0]).max())
    np.testing.assert_allclose(metrics["cosine"], dense_metrics["cosine"][0], atol=1e-5)


BY_BLOCK = {"kernel": P("row", "column"), "bias": P(), "table": P("column"), "scale": P()}
OF_BLOCK = {"kernel": ("row", "column"), "table": ("column",), "": ()}


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize("check_vma", [True, False])
def test_blocks_over_two_axes_and_gradients_of_extreme_scales(scale, check_vma):
    g = jax.tree.map(lambda x: x.at[1].mul(scale), gradients(2))
    over = ("row", "column") if check_vma else OF_BLOCK
    adasum = functools.partial(made, "adasum", granularity="model")
    axes = {"worker": 2, "row": 2, "column": 2}
    found = cut(adasum(sharded_over=over), g, axes=axes, specs=BY_BLOCK, check_vma=check_vma)
    same(found, whole(adasum(), g))


@pytest.mark.parametrize("name", ["adasum", "krum"])
def test_what_is_not_finite_in_one_part_is_so_in_the_whole_layer(name):
    g = gradients(4)
    g["kernel"] = g["kernel"].at[1, 2, 7].set(jnp.nan)  # in the last part
    options = {"granularity": "layer"} if name == "adasum" else {"granularity": "model"}
    found = cut(made(name, sharded_over="model", **options), g, axes={"worker": 4, "model": 2})
    expected = whole(made(name, **options), g)
    same((found[0], {}, found[2]), (expected[0], {}, expected[2]))
    assert np.isnan(found[0][0]["kernel"]).all() == (name == "adasum")
    assert np.isfinite(found[0][0]["table"]).all()


def wrapped(name, **more):
    over = more.get("sharded_over")
    return {
        "finite": lambda: reducers.apply_if_finite(made("adacons", **more), "worker", 3, sharded_over=over),
        "half": lambda: reducers.in_half_precision(made("adasum", **more), axis_name="worker", sharded_over=over),
        "dynamic": lambda: made("dynamic_backup_workers", warmup_steps=2, min_required=2, **more),
        "batches": lambda: made("adaptive_batch", **more),
        "backup": lambda: made("backup_workers", combine="adasum", **more),
    }[name]()


SECONDS = np.tile(np.array([1.0, 3.0, 2.0, 9.0], np.float32), (4, 1))
NEEDS = {"dynamic": {"arrival_seconds": SECONDS}, "backup": {"arrival_seconds": SECONDS}}


@pytest.mark.parametrize(
    ("name", "check_vma"),
    grid(
        ("finite", "half", "dynamic", "batches", "backup"),
        (True, False),
        quick={("finite", True), ("dynamic", False), ("batches", True)},
    ),
)
@pytest.mark.parametrize("broken", [False, True])
def test_wrappers_agree_over_the_parts(name, check_vma, broken):
    g = gradients(4)
    if broken:
        g["kernel"] = g["kernel"].at[1, 2, 7].set(jnp.inf)
    axes = {"worker": 4, "model": 2}
    extra = NEEDS.get(name, {})
    over = ("model",) if check_vma else PATTERNS
    found = cut(wrapped(name, sharded_over=over), g, axes=axes, steps=3, check_vma=check_vma, **extra)
    expected = whole(wrapped(name), g, steps=3, **extra)
    same(found, expected, tolerance=2e-3 if name == "half" else 1e-6)


def check_refused(reducer, says, **options):
    with refused(ValueError, says):
        cut(reducer, gradients(4), axes={"worker": 4, "model": 2}, **options)


def test_what_cannot_be_summed_over_parts_is_refused():
    for algorithm in ("halving", "gather"):
        with pytest.raises(ValueError, match=f"algorithm='{algorithm}': must be 'gram' with sharded_over"):
            reducers.adasum("worker", algorithm=algorithm, sharded_over=("model",))
    with pytest.raises(ValueError, match=r"sharded_over=.*: must be .* cannot be summed over their parts"):
        reducers.encoded(reducers.mean("worker"), encodings.quantised(bits=4), axis_name="worker", sharded_over="model")
    with pytest.raises(ValueError, match=r"sharded_over=.*: must be"):
        communication.make("sign", reducer=reducers.mean("w"), axis_name="w", sharded_over=("model",))
    check_refused(made("adasum", sharded_over=("worker",)), "sharded_over: 'worker' is a worker axis")
    check_refused(made("adasum", sharded_over="depth"), "sharded_over: 'depth' is no manual axis here")
    check_refused(made("adasum", sharded_over={"kernel": "model"}), "sharded_over: 'bias' matches none of 'kernel'")


def test_axes_that_are_left_to_the_compiler_need_no_option():
    mesh = mesh_of(worker=4, model=2)
    reducer, g = made("adasum"), gradients(4)
    placed = {name: jax.device_put(g[name], jax.NamedSharding(mesh, P("worker", *BY_MODEL[name]))) for name in g}
    one = lambda g: reducer.update(jax.tree.map(lambda x: x[0], g), reducer.init(g))[0]  # noqa: E731
    specs = {"in_specs": P("worker"), "out_specs": P(), "axis_names": {"worker"}, "check_vma": False}
    found = jax.jit(jax.shard_map(one, mesh=mesh, **specs))(placed)
    expected = whole(reducer, g)[0][0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6), found, expected)
    unbound = made("adasum", sharded_over=("model",))
    one = lambda g: unbound.update(jax.tree.map(lambda x: x[0], g), unbound.init(g))[0]  # noqa: E731
    says = "'model' is no manual axis here; leave out axes that are left to the compiler"
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(jax.shard_map(one, mesh=mesh, **specs), placed)


def test_elementwise_rules_need_nothing():
    g = gradients(4)
    found = cut(reducers.mean("worker"), g, axes={"worker": 4, "model": 2})
    same(found, whole(reducers.mean("worker"), g))


def test_complex_leaves_keep_their_copies():
    mesh = mesh_of(worker=2, model=2)
    reducer = reducers.adasum("worker", granularity="model", sharded_over="model")
    g = {"w": jnp.array([[1.0] * 4, [2j] * 4]), "v": jnp.array([[1j] * 3, [1.0] * 3])}
    specs = {"w": P("model"), "v": P()}
    one = lambda g: reducer.update(jax.tree.map(lambda x: x[0], g), reducer.init(g))[0]  # noqa: E731
    in_specs = ({"w": P("worker", "model"), "v": P("worker")},)
    found = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=in_specs, out_specs=specs))(g)
    dense = reducers.adasum("worker", granularity="model")
    expected = jax.jit(jax.vmap(lambda g: dense.update(g, dense.init(g))[0], axis_name="worker"))(g)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-6), found, expected)
