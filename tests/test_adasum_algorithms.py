"""The ways in which devices work Adasum out: where each runs, what it sends, how lanes and groups are folded."""

import functools
import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from benchmarks.kit.leaves import lenet5, resnet50
from parallel import AXES, Layout, map_devices
from reducers.adasum import Tree
from reducers.adasum.fold import adasum_rule
from reducers.gram import Products
from tests.cases import adasum as oracle
from tests.grid import each
from tests.started import python
from tests.test_adasum import combine, compiled, error, leaves_of
from tests.test_reducers import WORKER, absent

ALGORITHMS = ["gram", "gather", "halving"]
adasum = functools.partial(reducers.adasum, WORKER)


def on_layout(grads, num_devices, *, contributes=None, **options):
    """Every device's result, [D, ...], of gradients [W, ...] of so many devices with lanes."""
    num_workers = len(grads[0])
    reducer = reducers.adasum(AXES, **options)
    layout = Layout.of(num_workers, num_devices=num_devices)

    def device(grads, contributes):
        one = lambda g, c: reducer.update(g, reducer.init(g), contributes=c)[0]  # noqa: E731
        results = jax.vmap(one, axis_name=AXES[1])(grads, contributes)  # every lane's
        return jax.tree.map(lambda x: x[0], results)

    contributes = np.ones(num_workers, bool) if contributes is None else contributes
    return jax.device_get(map_devices(device, layout=layout)(*layout.put_per_worker((grads, contributes))))


def wide(grads):
    return [g.astype(np.float64) for g in grads]


# ---- all give the same ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scale", [3e38, 1.5e38])
def test_gradients_next_to_the_largest_number_do_not_vanish(algorithm, scale):
    for size in (2, 200):  # folded as vectors, and in the space of coefficients
        grads = np.zeros((2, size), np.float32)
        grads[0, 0] = grads[1, 1] = scale  # orthogonal: the sum
        for device in on_layout([grads], 2, algorithm=algorithm)[0]:
            np.testing.assert_allclose(device, grads.sum(0), rtol=1e-6)


LAYOUTS = [
    *((4, lanes, algorithm) for lanes in (1, 2, 3) for algorithm in ALGORITHMS),
    *((1, 4, algorithm) for algorithm in ALGORITHMS),
    *((1, lanes, "gram") for lanes in (24, 64)),  # folded eight at a time
    # Two neighbours after the other: three levels of eight devices, each of slices of the one before; an odd number at
    # the top is one level.
    *((num_devices, 1, "halving") for num_devices in (3, 6, 8)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_algorithm_is_the_tree_on_every_layout(layout):
    num_devices, lanes, algorithm = layout
    num_workers = num_devices * lanes
    assert lanes < 24 or Tree(lanes).neighbours(lanes, at_most=8) == 8
    grads = leaves_of(num_workers, seed=num_workers)
    mask = np.random.default_rng(num_workers).random(num_workers) < 0.6
    poisoned = absent(grads, mask, np.nan)
    present = absent(grads, mask, 0)
    for held, expected, contributes in [(grads, grads, None), (poisoned, present, mask)]:
        results = on_layout(held, num_devices, algorithm=algorithm, contributes=contributes)
        for replicas, g in zip(results, wide(expected), strict=True):
            assert error(replicas[0], oracle(g), g) <= (2e-6 if lanes == 64 else 1e-6)  # a tree of six levels
            assert all(np.array_equal(replicas[0], replica) for replica in replicas)


MANY = """
import sys
import jax
import numpy as np
import reducers
from tests.cases import adasum as oracle

count = int(sys.argv[1])
jax.config.update("jax_num_cpu_devices", count)
draw = np.random.default_rng(count)
grads = [draw.normal(size=(count, size)).astype(np.float32) for size in (3, 70, 301, 5000)]
grads = [x + x[:1] / 2 for x in grads]
mask = draw.random(count) < 0.8
mesh = jax.make_mesh((count,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))
reducer = reducers.adasum("worker")

def combine(grads, counted):
    own = [x[0] for x in grads]
    return [x[None] for x in reducer.update(own, reducer.init(own), contributes=counted[0])[0]]

spec = jax.sharding.PartitionSpec("worker")
program = jax.jit(jax.shard_map(combine, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
for counted in (np.ones(count, bool), mask):
    poisoned = [np.where(counted[:, None], x, np.nan) for x in grads]
    for found, x in zip(jax.device_get(program(poisoned, counted)), grads):
        expected = oracle(np.where(counted[:, None], x, 0).astype(np.float64))
        assert np.abs(found - expected).max() <= 1e-6 * np.linalg.norm(x, axis=1).max()
        assert (found == found[:1]).all()
"""


@pytest.mark.parametrize("count", [40, 67])  # levels of eight and of five; a prime number, by four neighbours
def test_more_devices_than_one_level_has(count):
    done = python("-c", MANY, count)
    assert done.returncode == 0, done.stderr[-2000:]


def test_lanes_come_after_devices():
    reducer = reducers.adasum(AXES[::-1])

    def device(g):
        return jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name=AXES[1], out_axes=None)(g)

    layout = Layout.of(4, num_devices=2)
    message = re.escape("axis_name=('lane', 'device'): vmapped axes (lane) must come after")
    with pytest.raises(ValueError, match=message):
        map_devices(device, layout=layout)(layout.put_per_worker(np.ones((4, 3), np.float32)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scaling_by_a_power_of_two_changes_no_bit(algorithm):
    # Beyond 2^40 vectors are divided by their scales before they are multiplied, which must not show.
    grads = [g + g[:1] for g in leaves_of(4)]
    reduce = compiled(adasum(algorithm=algorithm))
    one = reduce(grads)
    for exponent in (-90, -60, 60, 90):
        other = reduce([np.ldexp(g, exponent) for g in grads])
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(np.ldexp(x, exponent), y, err_msg=f"2^{exponent}")


@pytest.mark.parametrize("rounding", [1e-7, -2e-7, 5e-7])
def test_nodes_that_cancel_have_no_direction(rounding):
    """(a, -a) leaves rounding noise, which the third is added to as if it were zero, whatever the noise is."""
    gram = np.array([[1, -1, 1], [-1, 1 + 1e-7, -1 + rounding], [1, -1 + rounding, 1]], np.float32)
    products = Products(jnp.asarray(gram), scales=jnp.ones(3), counted=jnp.ones(3, bool))
    weights, _ = jax.jit(adasum_rule(Tree(3)))(products, ())
    np.testing.assert_allclose(weights, [1.5, 1.5, 1], rtol=1e-5)  # a's and -a's projections onto each other


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("num_devices", [2, 8])
def test_gradients_that_cancel_take_nothing_away(num_devices, algorithm):
    """Two of them in a level of the tree, folded as vectors or by dot products, on one device or on several."""
    rng, grads = np.random.default_rng(0), []
    for size in (40, 300):
        first, second = rng.standard_normal((2, 8, size)).astype(np.float32)
        first[1], first[6] = -first[0], -first[7]  # (a, -a), (b, c), (d, e), (-f, f)
        second[1], second[2:4] = second[0], -second[0]  # ((a, a), (-a, -a)), ...
        grads += [first, second, 1e-20 * first]
    check_optimised(grads, oracle, num_devices=num_devices, algorithm=algorithm)


def check_optimised(grads, expected, *, num_devices, **options):
    """Compares with a function of float64 gradients what a program does that is compiled as for use.

    Unoptimised, as tests are, a product is rounded before it is added, and leaves no noise.
    """
    reducer = reducers.adasum(AXES, **options)
    layout = Layout.of(len(grads[0]), num_devices=num_devices)
    lanes = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name=AXES[1])
    program = jax.jit(map_devices(lanes, layout=layout, mapping="shard_map"))
    split = layout.put_per_worker(grads)
    found = program.lower(split).compile(compiler_options={"xla_backend_optimization_level": 3})(split)
    for result, g in zip(found, wide(grads), strict=True):
        largest = np.linalg.norm(g, axis=1).max()
        first = np.asarray(result).reshape(len(g), -1)[0]
        np.testing.assert_allclose(first, expected(g), rtol=0, atol=1e-6 * largest)


# ---- groups ----------------------------------------------------------------------------------------------------------


def hierarchical(g, group_size, within):
    groups = g.reshape(-1, group_size, *g.shape[1:])
    inner = {"mean": lambda x: x.mean(0), "sum": lambda x: x.sum(0), "adasum": oracle}[within]
    return oracle(np.stack([inner(group) for group in groups]))


GROUPED = [  # devices, lanes, group_size
    (1, 12, 3),  # all on one device
    (4, 1, 2),  # groups of devices
    (6, 1, 3),  # groups of three devices, whose trees are uneven
    (2, 6, 3),  # whole groups on a device
    (2, 3, 6),  # a group is a device
    (4, 2, 4),  # a group is two devices
    (2, 6, 4),  # groups across a device's end
    (8, 1, 8),  # one group
]
QUICK_GROUPED = {((1, 12, 3), "mean"), ((6, 1, 3), "adasum"), ((2, 3, 6), "sum")}


@pytest.mark.parametrize(("layout", "within"), each(GROUPED, ["mean", "sum", "adasum"], quick=QUICK_GROUPED), ids=str)
def test_groups(layout, within):
    num_devices, lanes, group_size = layout
    n = num_devices * lanes
    grads = leaves_of(n, seed=n)
    for algorithm in ("gram", "gather"):
        results = on_layout(grads, num_devices, algorithm=algorithm, group_size=group_size, within=within)
        for replicas, g in zip(results, wide(grads), strict=True):
            assert error(replicas[0], hierarchical(g, group_size, within), g) <= 1e-6
            assert all(np.array_equal(replicas[0], replica) for replica in replicas)


@pytest.mark.parametrize("within", ["mean", "adasum", "sum"])
def test_absent_workers_of_groups_do_not_count(within):
    grads = leaves_of(8)
    mask = np.array([1, 0, 0, 0, 1, 1, 0, 1], bool)
    results = on_layout(absent(grads, mask, np.inf), 4, contributes=mask, group_size=4, within=within)
    for replicas, g in zip(results, wide(absent(grads, mask, 0)), strict=True):
        first, second = g[[0]], g[[4, 5, 7]]
        if within == "adasum":
            second = g[4:]  # whose tree passes the zero over
        inner = {"mean": lambda x: x.mean(0), "sum": lambda x: x.sum(0), "adasum": oracle}[within]
        assert error(replicas[0], oracle(np.stack([inner(first), inner(second)])), g) <= 1e-6


CANCELLING = [  # devices, options
    (1, {"algorithm": "gather", "within": "sum"}),
    (1, {"algorithm": "gram", "within": "mean"}),  # lanes
    (3, {"algorithm": "gram", "within": "sum"}),  # groups across devices
    (6, {"algorithm": "gram", "within": "mean"}),  # devices with lanes
    (1, {"algorithm": "gram", "within": "mean", "telemetry": "on"}),  # dot products
]


@pytest.mark.parametrize(("num_devices", "options"), CANCELLING)
def test_groups_that_cancel_take_nothing_away(num_devices, options):
    """Sums of six of which the partial sums, or the shares of the mean, are rounded."""
    grads = []
    for size in (40, 300):
        g = np.random.default_rng(size).standard_normal((12, size)).astype(np.float32)
        g[3:6] = -g[:3]
        grads.append(g)
    expected = functools.partial(hierarchical, group_size=6, within=options["within"])
    check_optimised(grads, expected, num_devices=num_devices, group_size=6, **options)


def test_groups_divide_the_workers():
    with pytest.raises(ValueError, match="group_size=3: must divide the 8 workers"):
        combine(adasum(group_size=3), leaves_of(8))


# ---- what is chosen, and what it sends -------------------------------------------------------------------------------


def test_small_layers_are_gathered():
    exchange = {"gram": "all_to_all", "gather": "all_gather"}
    for algorithm, num_elements, expected in [
        ("gram", 63, "gather"),  # dot products of so few lose digits
        ("gram", 64, "gram"),
        ("gather", 2000, "gather"),
        ("halving", 63, "gather"),
        ("halving", 64, "gram"),
    ]:
        layer = jax.ShapeDtypeStruct((num_elements,), jnp.float32)
        sent = reducers.traffic(adasum(algorithm=algorithm), [layer], axis_sizes={WORKER: 8}).collectives
        assert exchange[expected] in sent, (algorithm, num_elements)
        assert (exchange["gram"] in sent) == (expected == "gram"), (algorithm, num_elements)


@pytest.mark.parametrize("network", [lenet5, resnet50])
def test_bytes_of_each_algorithm(network):
    n, leaves = 8, network()
    size = 4 * sum(leaf.size for leaf in leaves)
    sent = {
        a: reducers.traffic(adasum(algorithm=a), leaves, axis_sizes={WORKER: n}).bytes_per_worker for a in ALGORITHMS
    }
    assert sent["gather"] == pytest.approx((n - 1) * size, rel=1e-6)
    for algorithm in ("gram", "halving"):  # as an all-reduce
        assert sent[algorithm] == pytest.approx(2 * (n - 1) / n * size, rel=0.01)


@pytest.mark.parametrize(("count", "most"), [(16, 2.1), (64, 2.1), (1000, 2.1), (4096, 2.1), (1021, 2.2)])
def test_bytes_of_many_devices(count, most):
    leaves = resnet50()
    sent = reducers.traffic(adasum(), leaves, axis_sizes={WORKER: count})
    assert 2 * (count - 1) / count <= sent.bytes_per_worker / (4 * sum(leaf.size for leaf in leaves)) <= most


def test_processes_add_up_the_dot_products_of_all_buckets_at_once(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal((4, size)).astype(np.float32) for size in (1_100_000, 3, 1000, 1_200_000, 1000)]
    moved = reducers.traffic(adasum(), [g[0] for g in grads], axis_sizes={WORKER: 4})
    # Two large layers, a bucket, and one that is gathered. Where norms leave the range of float32, dot products are
    # summed once more.
    assert moved.collectives == {"all_to_all": 3, "psum": 2, "all_gather": 4}
    for algorithm in ("gram", "halving"):
        for replicas, g in zip(on_layout(grads, 4, algorithm=algorithm), wide(grads), strict=True):
            assert error(replicas[0], oracle(g), g) <= 1e-6
            assert all(np.array_equal(replicas[0], replica) for replica in replicas)


@pytest.mark.parametrize("algorithm", ["gram", "gather"])
def test_half_precision_is_sent_as_such(algorithm):
    full = [jax.ShapeDtypeStruct((100, 50), jnp.float32)]
    half = [jax.ShapeDtypeStruct((100, 50), jnp.bfloat16)]
    count = lambda leaves: reducers.traffic(adasum(algorithm=algorithm), leaves, axis_sizes={WORKER: 8})  # noqa: E731
    assert count(half).bytes_per_worker == pytest.approx(count(full).bytes_per_worker / 2, rel=0.1)
    # A device's lanes are combined in float32, and that is not rounded before the end.
    grads = [g.astype(jnp.bfloat16) for g in leaves_of(8)]
    for replicas, g in zip(on_layout(grads, 4, algorithm=algorithm), grads, strict=True):
        exact = oracle(g.astype(np.float64))
        assert replicas.dtype == jnp.bfloat16
        # One rounding, to the nearest of 8 bits; sums that land between two may go to the other.
        assert np.abs(replicas[0].astype(np.float64) - exact).max() <= 2**-8 * np.abs(exact).max() * 1.001


# ---- telemetry -------------------------------------------------------------------------------------------------------


def telemetry_by_hand(g, result=None):
    rows = g.reshape(len(g), -1)
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    length = np.linalg.norm(oracle(g) if result is None else result)
    norms = np.linalg.norm(rows, axis=1)
    units = rows / norms[:, None]
    upper = (units @ units.T)[np.triu_indices(len(rows), 1)]
    return {
        "orthogonality": length / np.sqrt(np.square(norms).sum()),
        "cosine": upper.mean() if len(upper) else 0,
        "gain": length / np.linalg.norm(rows.mean(0)),
        "covariance_trace": rows.var(axis=0, ddof=1).sum(),
        "squared_gradient": np.square(rows.mean(0)).sum() - rows.var(axis=0, ddof=1).sum() / len(rows),
    }


def metrics_of(grads, *, num_devices, contributes=None, **options):
    reducer = reducers.adasum(AXES, telemetry="on", **options)
    layout = Layout.of(len(grads["a"]), num_devices=num_devices)

    def device(grads, contributes):
        def one(g, c):
            started = reducer.init(g)
            state = reducer.update(g, started, contributes=c)[1]
            assert jax.tree.structure(state) == jax.tree.structure(started)
            return reducers.report(state).metrics

        return jax.tree.map(lambda x: x[0], jax.vmap(one, axis_name=AXES[1])(grads, contributes))

    contributes = np.ones(layout.num_workers, bool) if contributes is None else contributes
    metrics = jax.device_get(map_devices(device, layout=layout)(*layout.put_per_worker((grads, contributes))))
    assert all((replicas == replicas[0]).all() or np.isnan(replicas).all() for replicas in metrics.values())
    return {name: replicas[0] for name, replicas in metrics.items()}


@pytest.mark.parametrize("algorithm", ["gram", "gather"])
@pytest.mark.parametrize("layout", [(4, 2), (1, 5)], ids=str)
def test_telemetry(layout, algorithm):
    num_devices, lanes = layout
    n = num_devices * lanes
    _, a, b, _, c = leaves_of(n, seed=n)
    mask = np.arange(n) != 2
    held = {"a": a, "b": b + b[:1], "c": 1e-20 * (c + c[1:2])}
    for contributes in (None, mask):
        metrics = metrics_of(held, num_devices=num_devices, algorithm=algorithm, contributes=contributes)
        counted = absent(list(held.values()), np.ones(n, bool) if contributes is None else mask, 0)
        layers = [layer.reshape(n, -1) for layer in wide(counted)]
        by_hand = {f"/{name}": telemetry_by_hand(layer) for name, layer in zip(held, layers, strict=True)}
        by_hand[""] = telemetry_by_hand(np.hstack(layers), np.hstack([oracle(layer) for layer in layers]))
        expected = {f"{key}{name}": value for name, scalars in by_hand.items() for key, value in scalars.items()}
        assert {name for name in metrics if not name.startswith("weight_spread")} == expected.keys()
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name


def test_telemetry_of_groups_that_are_added_up_is_of_workers_on_every_layout():
    held = dict(zip("ab", leaves_of(4)[3:], strict=True))
    alone = metrics_of(held, num_devices=4)
    for num_devices in (1, 2, 4):
        grouped = metrics_of(held, num_devices=num_devices, group_size=2, within="sum")
        for key in ("cosine", "squared_gradient", "covariance_trace"):
            assert grouped[key] == pytest.approx(alone[key], rel=1e-5), (num_devices, key)


@pytest.mark.parametrize(("layout", "algorithm"), [((4, 2), "gram"), ((2, 4), "gather"), ((1, 8), "gram")], ids=str)
def test_telemetry_of_means_of_groups_is_of_workers(layout, algorithm):
    """Also where groups have different numbers of workers that count, whose shares of the means then differ."""
    num_devices, lanes = layout
    n = num_devices * lanes
    _, a, b, *_ = leaves_of(n, seed=n)
    held = {"a": a + a[:1], "b": 1e-20 * b}
    mask = np.array([1, 1, 0, 1, 0, 0, 0, 1], bool)
    for contributes in (np.ones(n, bool), mask):
        metrics = metrics_of(
            held, num_devices=num_devices, algorithm=algorithm, contributes=contributes, group_size=4, within="mean"
        )
        for name, layer in held.items():
            g = layer.astype(np.float64)
            groups = [g[start : start + 4][contributes[start : start + 4]] for start in (0, 4)]
            result = oracle(np.stack([group.mean(0) for group in groups]))
            for key, value in telemetry_by_hand(absent([g], contributes, 0)[0], result).items():
                assert metrics[f"{key}/{name}"] == pytest.approx(value, rel=2e-5, abs=1e-6), (key, name)


def test_telemetry_of_equal_gradients_in_groups():
    same = np.ones((4, 80), np.float32)
    for contributes, expected in (
        ([1, 1, 1, 1], {"gain": 1, "orthogonality": 0.5, "weight_spread": 0, "squared_gradient": 80}),
        # Weights 1/2, 1/4 and 1/4: the spread is 1/4 over 1/3.
        ([1, 0, 1, 1], {"gain": 1, "orthogonality": 3**-0.5, "weight_spread": 0.75, "squared_gradient": 80}),
    ):
        metrics = metrics_of({"a": same}, num_devices=2, contributes=np.array(contributes, bool), group_size=2)
        for place in ("", "/a"):
            assert {key: metrics[f"{key}{place}"] for key in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_telemetry_of_what_has_no_angle():
    orthogonal = np.kron(np.eye(4), np.ones((1, 20))).astype(np.float32)
    same = np.repeat(orthogonal[:1], 4, axis=0)
    metrics = metrics_of({"a": orthogonal, "same": same, "zero": 0 * same}, num_devices=2)
    expect = {"a": (1, 0, 4), "same": (0.5, 1, 1), "zero": (0, np.nan, 0)}
    for layer, values in expect.items():
        seen = [metrics[f"{key}/{layer}"] for key in ("orthogonality", "cosine", "gain")]
        np.testing.assert_allclose(seen, values, atol=1e-6, err_msg=layer)


@pytest.mark.parametrize(
    ("grads", "counted"),
    [([1], [1]), ([1, 2, 3], [0, 1, 0]), ([0, 2, 0], [1, 1, 1]), ([0, 2, 3], [1, 1, 0])],  # or alone is not zero
)
def test_telemetry_of_one_worker_knows_no_angle_and_no_variance(grads, counted):
    reducer = reducers.radial_directional(WORKER, telemetry="on")

    def one(g, c):
        return reducers.report(reducer.update({"a": g}, reducer.init({"a": g}), contributes=c)[1]).metrics

    given = np.float32(grads)[:, None] * np.ones(70, np.float32), np.array(counted, bool)
    for name, value in jax.jit(jax.vmap(one, axis_name=WORKER))(*given).items():
        is_undefined = name.partition("/")[0] in ("cosine", "squared_gradient", "covariance_trace")
        assert np.isnan(value).all() == is_undefined, name


def test_telemetry_of_the_model_joins_layers_of_any_scale():
    _, a, b, *_ = leaves_of(8)
    held = {"a": 1e-25 * a, "b": 1e12 * b}
    metrics = metrics_of(held, num_devices=2)
    for key in ("orthogonality", "cosine", "gain"):  # the large layer is all that counts
        assert metrics[key] == pytest.approx(metrics[f"{key}/b"], rel=1e-5) != metrics[f"{key}/a"]
    as_one = metrics_of(held, num_devices=2, granularity="model")
    for key in ("orthogonality", "cosine", "gain"):
        assert as_one[key] == pytest.approx(as_one[f"{key}/model"], rel=1e-6)


def test_telemetry_changes_no_result_and_is_off_by_default():
    grads = leaves_of(8)
    off, on = (combine(adasum(algorithm="gram", telemetry=t), grads) for t in ("off", "on"))
    jax.tree.map(np.testing.assert_array_equal, off, on)
    assert not reducers.report(adasum().init(grads)).metrics
