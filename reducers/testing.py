"""The laws that every reducer keeps, whoever wrote it; ``check`` puts a reducer through all of them in one call."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from reducers import targets
from reducers.collectives import AxisName
from reducers.reducer import Reducer, as_reducer

# Makes the reducer for a worker axis, or for a tuple of axes.
Maker: TypeAlias = Callable[[AxisName], optax.GradientTransformation]

# Leaves for each way in which reducers send them: a scalar, small leaves, and a large one that is sent alone.
PARAMS = {
    "matrix": jax.ShapeDtypeStruct((6, 4), jnp.float32),
    "vectors": (jax.ShapeDtypeStruct((5,), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.float32)),
    "scalar": jax.ShapeDtypeStruct((), jnp.float32),
    "large": jax.ShapeDtypeStruct((8, 33), jnp.float32),
}
WORKER, MODEL = "worker", "model"
NUM_STEPS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A reducer under test.

    Attributes:
      make: ``axis_name -> reducer``.
      params: shapes of the parameters.
      num_workers: an even number.
      extra_args: keyword arguments of ``update``, the same on all workers, without ``arrival_seconds``.
    """

    make: Maker
    params: Any
    num_workers: int
    extra_args: Mapping[str, Any]

    @functools.cached_property
    def reducer(self) -> Reducer:
        """The reducer for one worker axis."""
        return as_reducer(self.make(WORKER))

    @property
    def shared(self) -> dict[str, Any]:
        """The keyword arguments of ``update``, with ``arrival_seconds`` for a reducer that says that it needs them."""
        seconds = {"arrival_seconds": np.arange(self.num_workers, 0, -1, dtype=np.float32)}
        return {**(seconds if self.reducer.needs_arrivals else {}), **self.extra_args}

    @functools.cached_property
    def program(self) -> Callable[..., Any]:
        """The compiled program of all workers under one axis: (gradients, extra_args of each) -> [W, T, ...]."""
        return jax.jit(jax.vmap(self.steps(self.reducer), axis_name=WORKER))

    def steps(self, reducer: Reducer) -> Callable[..., Any]:
        """Returns (gradients, extra_args) -> results of some updates of one worker, [T, ...]."""

        def one(gradients, extra_args):
            def step(state, _):
                return reducer.update(gradients, state, gradients, **self.shared, **extra_args)[::-1]

            return lax.scan(step, reducer.init(gradients), None, length=NUM_STEPS)[1]

        return one

    def results(self, gradients: Any, **extra_args: Any) -> Any:
        """Returns all workers' results, [W, T, ...]."""
        return jax.tree.map(np.asarray, self.program(gradients, extra_args))

    def gradients(self, dtype: Any = np.float32) -> Any:
        """Returns gradients of all workers, [W, ...]."""
        rng = np.random.default_rng(0)
        draw = lambda p: rng.standard_normal((self.num_workers, *p.shape)).astype(dtype)  # noqa: E731
        return jax.tree.map(draw, self.params)


def check(
    make: Maker, *, params: Any = PARAMS, num_workers: int = 8, extra_args: Mapping[str, Any] | None = None
) -> None:
    """Raises AssertionError, which names the law, unless a reducer keeps all laws that hold for any reducer.

    The laws are those of ``LAWS``: the result is the same on all workers, bit by bit, for one worker axis and for
    devices x lanes; structure, shapes and dtypes are kept; ``jax.lax.scan`` can carry the state, which can be donated
    and made of shapes; ``jax.shard_map`` can be over automatic and explicit axes, with ``check_vma`` and without; JAX's
    promotion of dtypes may be "strict"; and the facts of a ``Reducer`` are true. It takes some seconds, and one device
    is enough: meshes are traced only. Where the compilers of TPUs or GPUs are installed, they compile the reducer for
    several devices, if Python was started with ``JAX_PLATFORMS=cpu``.

    Args:
      make: ``axis_name -> reducer``, such as ``lambda axis: my_reducer(axis, epsilon=0.1)``; axis_name is "worker" or a
        tuple of two names.
      params: a tree of ``jax.ShapeDtypeStruct``, for a reducer that needs a certain tree.
      num_workers: an even number.
      extra_args: keyword arguments that ``update`` needs, the same on all workers. A reducer that says that it needs
        ``arrival_seconds`` gets some without this.

    >>> import reducers
    >>> check(reducers.mean)
    >>> check(lambda axis: optax.identity())
    Traceback (most recent call last):
    AssertionError: same_on_all: result['large'] differs between workers
    """
    check_laws(LAWS, Subject(make, params, num_workers, extra_args or {}))


def check_laws(laws: Mapping[str, Callable[[Any], None]], subject: "Subject") -> None:
    """Raises AssertionError, which names the law, unless a subject keeps all of them."""
    for name, law in laws.items():
        try:
            law(subject)
        except Exception as error:
            raise AssertionError(f"{name}: {' '.join(str(error).split())}") from error


# ---- numbers -------------------------------------------------------------------------------------------------------


def same_on_all(subject: Subject) -> None:
    """All workers have the same result, to the bit."""
    _check_same(subject.results(subject.gradients()))


def _check_same(results: Any) -> None:
    for path, leaf in jax.tree.leaves_with_path(results):
        same = all(np.array_equal(one, leaf[0], equal_nan=True) for one in leaf)
        if not same:  # an assert would have another message where pytest rewrites this module
            raise AssertionError(f"result{jax.tree_util.keystr(path)} differs between workers")


def two_axes(subject: Subject) -> None:
    """Devices x lanes give the result of one worker axis, up to rounding."""
    grid = lambda x: x.reshape(-1, 2, *x.shape[1:])  # noqa: E731
    one = subject.steps(as_reducer(subject.make(("device", "lane"))))
    program = jax.vmap(jax.vmap(one, axis_name="lane", in_axes=(0, None)), axis_name="device", in_axes=(0, None))
    gradients = subject.gradients()
    found = jax.tree.map(
        lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), jax.jit(program)(jax.tree.map(grid, gradients), {})
    )
    _check_same(found)
    _check_close(found, subject.results(gradients), "two axes and one")


def _check_close(found: Any, expected: Any, what: str) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        difference = np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30)
        assert difference < 1e-4, f"result{jax.tree_util.keystr(path)} differs by {difference:.0e} between {what}"


def _filled(gradients: Any, kept: np.ndarray, value: float) -> Any:
    """Returns gradients with a value for those of workers that are not kept."""
    return jax.tree.map(lambda g: np.where(kept.reshape(-1, *[1] * (g.ndim - 1)), g, np.float32(value)), gradients)


def mask(subject: Subject) -> None:
    """A reducer that takes a mask leaves workers out, whatever their values."""
    if not subject.reducer.takes_mask:
        return
    kept = np.arange(subject.num_workers) % 3 > 0
    gradients = subject.gradients()

    def with_absent(value):
        return subject.results(_filled(gradients, kept, value), contributes=kept)

    clean = with_absent(0)
    for value in (np.nan, np.inf, 1e30):
        same = all(map(np.array_equal, jax.tree.leaves(with_absent(value)), jax.tree.leaves(clean)))
        assert same, f"{value} of a worker that is left out changes the result"


def weights(subject: Subject) -> None:
    """A reducer that takes weights obeys them.

    Equal weights change nothing, and a weight of 0 leaves a worker out, whatever its values are. If all weights are 0,
    so is the result. If they are negative, NaN or infinite, no element of the result is a number, unless the update is
    0 in any case.
    """
    if not subject.reducer.takes_weights:
        return
    kept = np.arange(subject.num_workers) % 3 > 0
    gradients = subject.gradients()
    equal = subject.results(gradients, weights=np.full(subject.num_workers, 3.0, np.float32))
    _check_close(equal, subject.results(gradients), "weights of 3 and no weights")

    def with_absent(value):
        return subject.results(_filled(gradients, kept, value), weights=kept.astype(np.float32))

    same = all(map(np.array_equal, *map(jax.tree.leaves, (with_absent(np.nan), with_absent(0)))))
    assert same, "NaN of a worker of weight 0 changes the result"
    for value in (0.0, -1.0, np.nan, np.inf):
        found = jax.tree.leaves(subject.results(gradients, weights=np.full(subject.num_workers, value, np.float32)))
        right = all(((x == 0) | (value != 0) & ~np.isfinite(x)).all() for x in found)
        assert right, f"weights of {value} give a result"


def homogeneous(subject: Subject) -> None:
    """A reducer that says R(c g) = c R(g) does so."""
    if not subject.reducer.homogeneous:
        return
    gradients = subject.gradients()
    scaled = subject.results(jax.tree.map(lambda g: 1024 * g, gradients))
    expected = jax.tree.map(lambda x: 1024 * x, subject.results(gradients))
    _check_close(scaled, expected, "R(1024 g) and 1024 R(g)")


# ---- types and states ----------------------------------------------------------------------------------------------


def dtypes(subject: Subject) -> None:
    """Updates and state keep structure, shapes and dtypes, whatever parameters have; unknown keywords are ignored."""
    reducer = subject.reducer

    def one(g, params):
        state = reducer.init(params)
        return (g, state), reducer.update(g, state, params, **subject.shared, unheard_of=0)

    half, full = jnp.bfloat16, np.float32  # the laws of meshes trace float32
    for of_each in ((half, half), (half, full), (full, half)):
        arguments = map(subject.gradients, of_each)
        before, after = jax.eval_shape(jax.vmap(one, axis_name=WORKER), *arguments)
        for what, *trees in zip(("updates", "state"), before, after, strict=True):
            kinds = [jax.tree.map(lambda x: (x.shape, jnp.dtype(x.dtype).name), tree) for tree in trees]
            assert kinds[0] == kinds[1], f"{what} {kinds[0]} become {kinds[1]}"


def strict_promotion(subject: Subject) -> None:
    """No dtypes are mixed, so that JAX's promotion may be "strict"."""
    with jax.numpy_dtype_promotion("strict"):
        dtypes(subject)


def state_can_be_donated(subject: Subject) -> None:
    """No two arrays of a state, or of a state and the parameters, share a buffer; the next state does not need it."""
    reducer = subject.reducer
    params = jax.tree.map(lambda p: jnp.ones(p.shape, p.dtype), subject.params)
    state = reducer.init(params)
    seen: dict[int, str] = {}
    for path, leaf in jax.tree.leaves_with_path({"params": params, "state": state}):
        where = jax.tree_util.keystr(path)
        for shard in leaf.addressable_shards if isinstance(leaf, jax.Array) else ():
            place = shard.data.unsafe_buffer_pointer()
            assert not shard.data.size or place not in seen, f"{where} and {seen.get(place)} are one array"
            seen[place] = where
    for leaf in jax.tree.leaves(state):
        if isinstance(leaf, jax.Array):
            leaf.delete()
    for path, leaf in jax.tree.leaves_with_path(reducer.init(params)):
        gone = isinstance(leaf, jax.Array) and leaf.is_deleted()
        assert not gone, f"{jax.tree_util.keystr(path)} of the next state is an array of the first, and donated"


def abstract_init(subject: Subject) -> None:
    """``init`` takes ``jax.ShapeDtypeStruct`` as it takes arrays."""
    reducer = subject.reducer
    of_arrays = jax.eval_shape(reducer.init, subject.params)
    of_shapes = reducer.init(subject.params)
    kinds = [jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree) for tree in (of_arrays, of_shapes)]
    assert kinds[0] == kinds[1], f"init of shapes makes {kinds[1]}, and of arrays {kinds[0]}"


# ---- meshes --------------------------------------------------------------------------------------------------------


def on_mesh(
    subject: Subject,
    *,
    kind: AxisType,
    check_vma: bool,
    with_model: bool,
    manual: tuple[str, ...] = (WORKER,),
) -> None:
    """``jax.shard_map`` of some updates, in a scan, which also makes the state.

    Args:
      subject: the reducer under test.
      kind: the type of the mesh's axes.
      check_vma: see ``jax.shard_map``.
      with_model: whether there is a model axis, over which leaves are cut.
      manual: the manual axes.
    """
    sizes = {WORKER: subject.num_workers} | ({MODEL: 2} if with_model else {})
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    cuts = jax.tree.map(lambda p: _cut(p.shape, over=MODEL if with_model else None), subject.params)
    arguments = [
        jax.tree.map(
            lambda p, cut, lead=lead: jax.ShapeDtypeStruct(
                (*(subject.num_workers,) * len(lead), *p.shape),
                p.dtype,
                sharding=NamedSharding(mesh, PartitionSpec(*lead, *cut)),
            ),
            subject.params,
            cuts,
        )
        for lead in ((), (WORKER,))
    ]

    def worker(params, gradients):
        gradients = jax.tree.map(operator.itemgetter(0), gradients)
        reducer = subject.reducer

        def step(state, _):
            return reducer.update(gradients, state, params, **subject.shared)[::-1]

        results = lax.scan(step, reducer.init(params), None, length=NUM_STEPS)[1]
        return jax.tree.map(operator.itemgetter(-1), results)

    is_manual = MODEL in manual
    param_specs = cuts if is_manual else PartitionSpec()
    gradient_specs = jax.tree.map(lambda cut: PartitionSpec(WORKER, *cut), cuts) if is_manual else PartitionSpec(WORKER)
    mapped = jax.shard_map(
        worker,
        mesh=mesh,
        in_specs=(param_specs, gradient_specs),
        out_specs=param_specs,
        axis_names=set(manual),
        check_vma=check_vma,
    )
    with jax.sharding.use_abstract_mesh(mesh):
        found = jax.eval_shape(jax.jit(mapped), *arguments)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (found, subject.params)]
    assert shapes[0] == shapes[1], f"updates {shapes[1]} become {shapes[0]}"
    if kind == AxisType.Explicit:
        for (path, x), cut in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(cuts), strict=True):
            spec = x.sharding.spec
            assert spec == cut, f"result{jax.tree_util.keystr(path)} is cut as {spec}, and the update as {cut}"


def _cut(shape: tuple[int, ...], *, over: str | None) -> PartitionSpec:
    """Returns how a leaf is cut over an axis of two devices: along its last dimension that is even."""
    even = [i for i, size in enumerate(shape) if size and size % 2 == 0]
    return PartitionSpec(*(over if even and i == even[-1] else None for i in range(len(shape))))


MESHES: dict[str, Callable[[Subject], None]] = {
    f"{kind.name}-{'data_model' if with_model else 'one_axis'}-{'check_vma' if check_vma else 'unchecked'}": (
        functools.partial(on_mesh, kind=kind, check_vma=check_vma, with_model=with_model)
    )
    for kind in (AxisType.Auto, AxisType.Explicit)
    for with_model in (False, True)
    for check_vma in (True, False)
}

# ---- compilers -----------------------------------------------------------------------------------------------------


def compiles(subject: Subject) -> None:
    """The installed compilers of TPUs and GPUs take some updates of all workers: four TPUs or two GPUs, and lanes.

    A number of workers that four does not divide is compiled for GPUs alone. Only a process that was started with
    ``JAX_PLATFORMS=cpu`` compiles: another one may have devices of its own.
    """
    if getattr(jax.config, "jax_platforms", None) != "cpu":
        return
    for name in ("v5e:2x2", "h100:2"):
        target = targets.find(name)
        lanes, rest = divmod(subject.num_workers, target.num_devices)
        if rest or not targets.has_compiler(target.kind.platform):
            continue
        with target.compiling() as devices:
            one = subject.steps(as_reducer(subject.make(("device", "lane"))))
            of_lanes = jax.vmap(one, axis_name="lane", in_axes=(0, None))
            stacked = functools.partial(_stacked, lead=(target.num_devices, lanes))
            shapes = jax.tree.map(stacked, subject.params)
            jax.pmap(of_lanes, "device", in_axes=(0, None), devices=devices).lower(shapes, {}).compile()


def _stacked(leaf: jax.ShapeDtypeStruct, *, lead: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype)


LAWS: dict[str, Callable[[Subject], None]] = {
    "dtypes": dtypes,
    "state_can_be_donated": state_can_be_donated,
    "abstract_init": abstract_init,
    "same_on_all": same_on_all,
    "two_axes": two_axes,
    "mask": mask,
    "weights": weights,
    "homogeneous": homogeneous,
    **MESHES,
    "strict_promotion": strict_promotion,
    "compiles": compiles,
}
