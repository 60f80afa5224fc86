"""The laws of ``reducers.testing`` for each reducer, encoding and wrapper: meshes, donation, states of shapes."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reducers
from reducers import encodings, testing
from reducers.dtypes import mixing_dtypes
from reducers.wrappers import communication
from tests.cases import FIRST, ROWS
from tests.refused import refused
from tests.test_reducers import LIKE_KRUM

pytestmark = pytest.mark.usefixtures("three_widths")


def block(name, **options):
    return lambda axis_name, **more: reducers.make(name, axis_name=axis_name, **options, **more)


MAKERS = {name: row.make for name, row in ROWS.items()}
BACKUP = {"name": "backup_workers", "num_required": 5}
MAKERS |= {
    "finite": lambda axis_name, **more: reducers.apply_if_finite(
        reducers.adacons(axis_name, telemetry="on", **more), axis_name, 3, **more
    ),
    "half_adasum": lambda axis_name, **more: reducers.in_half_precision(
        reducers.adasum(axis_name, telemetry="on", **more), axis_name=axis_name, **more
    ),
    "top_k_krum": lambda axis_name, **more: reducers.encoded(
        reducers.krum(axis_name, **more), encodings.top_k(min_elements=4), axis_name=axis_name, **more
    ),
    "rounds_of_the_first": block("local_sgd", every_steps=2, combine={**BACKUP, "combine": "adasum"}),
    "batches_of_the_first": block("adaptive_batch", rule="norm_test", combine={**BACKUP, "combine": "krum"}),
    "late_adacons": block("stale", delay_steps=2, combine="adacons"),
    "delayed": block("local_sgd", every_steps=4, delay_steps=2, from_step=2),
    "corrupt_garbage": block("corrupt", combine="krum"),
}
# A row of each kind of state and of collectives; the others follow the same paths, and are held to all laws when slow.
QUICK = {name for name, row in ROWS.items() if FIRST.get(row.name) is row and row.name not in LIKE_KRUM}
QUICK |= {"half-1", "quantised-3", "dynamic_bits-4", "low_rank-10", "finite", "batches_of_the_first", "delayed"}
QUICK -= {"adasum", "trimmed_mean", "sum", "deadline", "quorum", "multi_krum", "corrupt-copy", "stale-3"}
STRICTEST = "Explicit-data_model-check_vma"


def subject_of(name, **more):
    return testing.Subject(functools.partial(MAKERS[name], **more), testing.PARAMS, 8, {})


def rows():
    """Returns the quick rows; ``test_one_call_checks_all_laws`` has them all."""
    of_all = [(name, mesh) for name in ("mean", "adasum") for mesh in testing.MESHES]
    return of_all + [(name, STRICTEST) for name in MAKERS if name in QUICK - {"mean", "adasum"}]


@pytest.mark.parametrize(("name", "mesh"), rows())
def test_meshes(name, mesh):
    testing.MESHES[mesh](subject_of(name))


@pytest.mark.parametrize("name", sorted(QUICK))
def test_dtypes_are_kept_and_states_can_be_donated_and_are_made_of_shapes(name):
    testing.strict_promotion(subject_of(name))
    testing.state_can_be_donated(subject_of(name))
    testing.abstract_init(subject_of(name))


@pytest.mark.parametrize("name", MAKERS)
def test_one_call_checks_all_laws(name):
    testing.check(MAKERS[name])


def test_check_takes_what_an_update_needs():
    def scaled(axis_name):
        mean = reducers.mean(axis_name)
        update = lambda g, s, p=None, *, factor, **more: mean.update(jax.tree.map(lambda x: factor * x, g), s)  # noqa: E731
        return reducers.Reducer(mean.init, update)

    params = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    testing.check(scaled, params=params, num_workers=4, extra_args={"factor": 2.0})
    with pytest.raises(AssertionError, match="factor"):
        testing.check(scaled)


# ---- wrong reducers ------------------------------------------------------------------------------------------------


def plain(update, *, init=lambda params: (), **facts):
    return lambda axis_name: reducers.Reducer(init, functools.partial(update, axis_name), **facts)


def averaged(axis, g, state, params=None, **extra_args):
    return jax.tree.map(lambda x: lax.pmean(x, axis), g), state


def with_eigenvalues(x):
    """Adds zero, by an operation that TPUs do not have."""
    square = jnp.broadcast_to(x.astype(jnp.float32).mean(), (2, 2))
    return x + 0 * jnp.linalg.eigvals(square).real.sum().astype(x.dtype)


ZERO = jnp.zeros(7)
ONE = jnp.ones((), jnp.int32)
WRONG = {
    "same_on_all": plain(lambda axis, g, state, params=None, **extra_args: (g, state)),
    "two_axes": plain(
        lambda axis, g, s, p=None, **extra_args: averaged((axis if isinstance(axis, str) else axis[-1],), g, s)
    ),
    "dtypes": plain(
        lambda axis, g, s, p=None, **more: (jax.tree.map(lambda x: lax.pmean(x.astype(jnp.float32), axis), g), s)
    ),
    "dtypes: state": plain(
        lambda axis, g, s, p=None, **more: (averaged(axis, g, s)[0], jnp.append(s, jnp.float32(0))),
        init=lambda params: jnp.zeros(1),
    ),
    "mask": plain(averaged, takes_mask=True),
    "weights": plain(averaged, takes_weights=True),
    "homogeneous": plain(
        lambda axis, g, s, p=None, **more: (jax.tree.map(lambda x: lax.pmean(jnp.sign(x), axis), g), s),
        homogeneous=True,
    ),
    "state_can_be_donated": plain(averaged, init=lambda params: ZERO),
    "strict_promotion": plain(
        lambda axis, g, s, p=None, **more: (jax.tree.map(lambda x: lax.psum(x, axis) / lax.psum(ONE, axis), g), s)
    ),
    "abstract_init": plain(averaged, init=lambda params: jax.tree.map(lambda p: p + 1, params)),
    STRICTEST: plain(
        lambda axis, g, s, p=None, **more: (jax.tree.map(lambda x: lax.pmean(x.ravel(), axis).reshape(x.shape), g), s)
    ),
    "Auto-one_axis-check_vma": plain(
        lambda axis, g, s, p=None, **more: (averaged(axis, g, s)[0], optax.tree.cast_like(g, s)),
        init=lambda p: jax.tree.map(jnp.zeros_like, p),
    ),
    "compiles": plain(lambda axis, g, s, p=None, **more: (jax.tree.map(with_eigenvalues, averaged(axis, g, s)[0]), s)),
}
NEEDS_COMPILERS = pytest.param("compiles", marks=pytest.mark.compilers)


@pytest.mark.parametrize("law", [*(law for law in WRONG if law != "compiles"), NEEDS_COMPILERS])
def test_check_names_the_law_that_a_wrong_reducer_breaks(law):
    with jax.numpy_dtype_promotion("standard"), pytest.raises(AssertionError, match=f"^{law}") as refusal:
        testing.check(WRONG[law])
    assert "\n" not in str(refusal.value)


# ---- numbers on explicit meshes ------------------------------------------------------------------------------------

ON_BOTH = ("mean", "adasum", "low_rank-10")  # the others on explicit axes alone


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, AxisType.Explicit) for name in MAKERS if "5" not in name),
        *((name, AxisType.Auto) for name in ON_BOTH),
    ],
)
def test_leaves_that_are_cut_over_a_model_axis_have_the_numbers_of_whole_ones(name, kind):
    workers = 4
    subject = testing.Subject(MAKERS[name], testing.PARAMS, workers, {})
    if "first" in name:
        pytest.skip("needs five workers")
    gradients = subject.gradients()
    mesh = jax.make_mesh((workers, 2), ("worker", "model"), axis_types=(kind, kind))
    cut = lambda g: P("worker", *(("model",) if g.ndim > 1 and g.shape[1] % 2 == 0 else ()))  # noqa: E731
    placed = jax.tree.map(lambda g: jax.device_put(g, NamedSharding(mesh, cut(g))), gradients)

    def one(gradients):
        return subject.steps(subject.reducer)(jax.tree.map(lambda g: g[0], gradients), {})

    specs = {"in_specs": P("worker"), "out_specs": P(), "axis_names": {"worker"}, "check_vma": False}
    found = jax.jit(jax.shard_map(one, mesh=mesh, **specs))(placed)
    tolerance = 2e-3 if "half" in name or name == "low_rank-11" else 1e-5
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(subject.results(gradients)), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=0, atol=tolerance * max(np.abs(b).max(initial=0), 1e-30))


@pytest.mark.parametrize("make", [reducers.mean, reducers.adasum, reducers.coordinate_median])
def test_workers_that_are_stacked_along_an_explicit_axis(make):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    reducer = make("worker")
    with jax.set_mesh(mesh):
        gradients = {"w": jax.ShapeDtypeStruct((8, 6, 4), jnp.float32, sharding=NamedSharding(mesh, P("data")))}
        update = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker", out_axes=None)
        assert jax.eval_shape(jax.jit(update), gradients)["w"].shape == (6, 4)


# ---- donated states ------------------------------------------------------------------------------------------------


def test_the_first_state_and_the_parameters_are_donated():
    reducer = reducers.apply_if_finite(reducers.make("stale", axis_name="w", delay_steps=2), "w", 3)
    optimizer = optax.chain(optax.adam(0.1), reducer)
    params = {"w": jnp.ones((8, 3)), "b": jnp.ones(8)}
    state = jax.vmap(optimizer.init)(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        updates, state = jax.vmap(mixing_dtypes(optimizer.update), axis_name="w")(params, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        params, state = jax.block_until_ready(step(params, state))


@pytest.mark.parametrize("name", ["local_sgd-2-1-adasum", "stale-3", "adaptive_batch-norm_test", "top_k-5", "gossip"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("are_shapes", [False, True])
def test_states_with_copies_of_the_parameters_are_cut_as_these_are(name, kind, are_shapes):
    mesh = jax.make_mesh((4, 2), ("worker", "model"), axis_types=(kind, kind))
    sharding = NamedSharding(mesh, P(None, "model"))
    params = {"w": jax.device_put(jnp.ones((64, 32)), sharding)}
    if are_shapes:
        params = {"w": jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)}
    copies = [x for x in jax.tree.leaves(MAKERS[name](axis_name="worker").init(params)) if x.shape[-2:] == (64, 32)]
    assert copies
    for copy in copies:
        assert copy.sharding.spec == P(*[None] * (copy.ndim - 1), "model")


# ---- a second manual axis ------------------------------------------------------------------------------------------

ELEMENTWISE = {"backup_workers", "coordinate_median", "corrupt", "deadline", "elastic_averaging", "full", "gossip"}
ELEMENTWISE |= {"local_sgd", "mean", "quorum", "sign_majority", "stale", "sum", "trimmed_mean", "delayed"}
JOIN = [name for name in MAKERS if subject_of(name).reducer.needs_whole_leaves]


def on_manual_axes(subject, check_vma=False):
    manual = {"manual": ("worker", "model"), "with_model": True}
    testing.on_mesh(subject, kind=AxisType.Auto, check_vma=check_vma, **manual)


LISTED = {name for name in MAKERS if name.partition("-")[0] in ELEMENTWISE and not name.endswith("adasum")}


def test_those_of_the_table_take_leaves_that_are_cut():
    assert not LISTED & set(JOIN)
    assert {"adasum-2", "krum-2", "half-1", "low_rank-10", "finite", "local_sgd-2-1-adasum"} <= set(JOIN)


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in JOIN])
def test_an_element_s_result_is_of_that_element(name):
    """A reducer that takes leaves that are cut makes of a part of them that part of what it makes of all."""
    subject = subject_of(name)
    half = lambda x, axis: x[(slice(None),) * axis + (slice(x.shape[axis] // 2),)] if x.ndim > axis else x  # noqa: E731
    gradients = subject.gradients()
    found = subject.results(jax.tree.map(lambda g: half(g, 1), gradients))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, half(b, 2), rtol=1e-6, atol=1e-7), found, subject.results(gradients)
    )


@pytest.mark.parametrize("name", MAKERS)
def test_refuses_leaves_that_may_be_cut_over_a_second_manual_axis(name):
    if name not in JOIN:
        on_manual_axes(subject_of(name), check_vma=True)
        return on_manual_axes(subject_of(name))
    with refused(ValueError, r"may be cut over the mesh axis 'model', .* sharded_over=\(\)"):
        on_manual_axes(subject_of(name))


@pytest.mark.parametrize("name", ["adasum", "finite", "low_rank-10", "radial_directional", "top_k_krum"])
def test_leaves_that_are_whole_are_not_refused(name):
    subject = subject_of(name, sharded_over=())
    assert not subject.reducer.needs_whole_leaves
    on_manual_axes(subject)


def halves(reducer, *, mesh, cut, check_vma=False):
    """Returns what a reducer makes of two workers' vectors of two numbers, whose halves two devices may have."""
    spec = P("worker", "model" if cut else None)
    update = lambda g: reducer.update(g[0], reducer.init(g[0]))[0]  # noqa: E731
    options = {"in_specs": spec, "out_specs": P("model" if cut else None), "check_vma": check_vma}
    return jax.jit(jax.shard_map(update, mesh=mesh, **options))(jnp.array([[1.0, 2.0], [2.0, 1.0]]))


def test_which_axes_can_cut():
    grid = functools.partial(jax.make_mesh, axis_names=("worker", "model"), axis_types=(AxisType.Auto,) * 2)
    mesh = grid((2, 2), devices=jax.devices()[:4])
    adasum = reducers.adasum("worker")
    for cut in (True, False):  # without the check nobody can tell these apart
        with pytest.raises(ValueError, match="sharded_over"):
            halves(adasum, mesh=mesh, cut=cut)
    with pytest.raises(ValueError, match="sharded_over"):
        halves(adasum, mesh=mesh, cut=True, check_vma=True)
    expected = jax.vmap(lambda g: adasum.update(g, adasum.init(g))[0], axis_name="worker")(
        jnp.array([[1.0, 2.0], [2.0, 1.0]])
    )[0]
    one_device = grid((2, 1), devices=jax.devices()[:2])
    for found in (
        halves(adasum, mesh=mesh, cut=False, check_vma=True),
        halves(reducers.adasum("worker", sharded_over=()), mesh=mesh, cut=False),
        halves(adasum, mesh=one_device, cut=True),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(halves(reducers.mean("worker"), mesh=mesh, cut=True), [1.5, 1.5])


def test_a_vmapped_axis_cuts_nothing():
    mesh = jax.make_mesh((8,), ("worker",), axis_types=(AxisType.Auto,))
    reducer = reducers.adasum("worker")
    update = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="example")
    mapped = jax.shard_map(lambda g: update(g[0]), mesh=mesh, in_specs=P("worker"), out_specs=P(), check_vma=False)
    assert jax.eval_shape(mapped, jnp.ones((8, 3, 5))).shape == (3, 5)


def test_nested_maps_and_chains_refuse_too():
    mesh = jax.make_mesh((4, 2), ("worker", "model"), axis_types=(AxisType.Auto,) * 2)
    chain = optax.chain(optax.clip(1.0), reducers.adasum("worker"))

    def inner(g):
        return chain.update(g[0], chain.init(g[0]))[0]

    def outer(g):
        options = {"in_specs": P("worker"), "out_specs": P(), "axis_names": {"worker"}, "check_vma": False}
        return jax.shard_map(inner, **options)(g)

    specs = {"in_specs": P(None, "model"), "out_specs": P("model"), "axis_names": {"model"}, "check_vma": False}
    with pytest.raises(ValueError, match="may be cut over the mesh axis 'model'"):
        jax.eval_shape(jax.jit(jax.shard_map(outer, mesh=mesh, **specs)), jnp.ones((4, 6)))


def test_what_names_no_axes_is_refused():
    for make in (
        lambda over: reducers.adasum("worker", sharded_over=over),
        lambda over: reducers.make(
            "backup_workers", num_required=2, combine="krum", axis_name="worker", sharded_over=over
        ),
        lambda over: communication.make("sign", reducer=reducers.mean("w"), axis_name="w", sharded_over=over),
    ):
        for over in (3, ["model"], {"kernel": 3}):
            with pytest.raises(ValueError, match=r"sharded_over=.*: must be \(\)"):
                make(over)
    with pytest.raises(ValueError, match=r"sharded_over\['\('\]: must be a regular expression"):
        reducers.krum("worker", sharded_over={"(": ("model",)})


def test_no_config_has_the_option():
    assert not any("sharded_over" in reducers.REDUCERS.parameters(name) for name in reducers.REDUCERS)
    with pytest.raises(ValueError, match=r"combine\.sharded_over: unknown key"):
        reducers.make("stale", delay_steps=1, combine={"name": "adasum", "sharded_over": ()}, axis_name="worker")
