"""A reducer: an optax transformation that carries the facts others need to know about it."""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

import optax

from reducers.arguments import (
    Numbers,
    check_leaves,
    check_mask,
    check_weights,
    has_float0,
    with_float0,
    with_gradient,
    without_float0,
)
from reducers.collectives import axes_of, check_one_per_worker, num_workers
from reducers.mesh import check_whole_leaves, on_automatic_axes
from reducers.options import in_one_line
from reducers.registry import Block, Registry, name_of
from reducers.state import carried, distinct

# A parameter with this annotation is a reducer inside a reducer; None is ``mean``. Configs write a name or a block.
Combine: TypeAlias = optax.GradientTransformation | None


# Which mask a reducer takes, whether it is for gradients or updates, and when its workers are local; see ``Facts``.
TakesMask = Literal[False, True, "whole"]
Reduces = Literal["either", "gradients", "updates"]
LocalWorkers = Literal["never", "between_rounds", "always"]


# Arguments of line searches, Polyak's step and others of optax: a worker's own loss, and functions of it.
OF_THE_LOSS = frozenset({"value", "grad", "value_fn", "grad_fn", "obj_fn"})


@dataclasses.dataclass(frozen=True)
class Facts:
    """What others need to know about a reducer.

    Attributes:
      axis_name: the worker axis, or a tuple of axes, outer first. A reducer that is made with it checks each call: the
        axes are bound, there is one update per worker, its leaves hold ``numbers``, ``contributes`` is a bool,
        ``weights`` is a number, and ``arrival_seconds`` are given if they are needed. Explicit axes of a mesh are then
        left to the compiler, and the state keeps the types that it had. A wrapper can leave this to the reducer inside
        it.
      needs_arrivals: whether ``update`` requires ``arrival_seconds`` [W], the same on all workers.
      takes_mask: whether ``update`` accepts ``contributes``, a bool of each worker; a worker with False is left out,
        whatever its values. Other reducers refuse it. "whole": it also accepts a ``Mask``, which saves a collective.
      takes_weights: whether ``update`` accepts ``weights``, a number of each worker, 0 or more, such as the number of
        examples behind its gradient. Only the ratios of weights matter; a weight of 0 leaves the worker out, as a mask
        does. Other reducers refuse weights.
      homogeneous: whether R(c g) = c R(g), also where c changes from one update to the next.
      num_counted: how many workers' batches each update counts, where the rule fixes that; None for all workers.
      awaits: ``(step, num_workers) -> count``, if ``update`` requires ``arrival_seconds``: the fewest workers that have
        to arrive before the update of that step can end. None for ``num_counted``, or for one if that is None. See
        ``Reducer.fewest_arrivals``.
      is_mean: whether R is the mean over the workers that are counted and nothing else, so that workers may send it
        encoded updates. Wrapping clears this flag.
      reduces: "gradients" or "updates" of the workers' own optimizers, if the reducer is for one of them alone; else
        "either".
      local_workers: when workers hold parameters or sums of gradients that have not reached the shared parameters.
        "never": each update emits its result. "between_rounds": the report says whether an update emitted anything, and
        nothing can wrap the reducer. "always": the same, and no update ever emits anything.
      may_overflow: whether an overflow makes the update zero; the report then says so.
      delays: whether an update emits the result of an earlier one. ``update`` then takes ``overflowed``, a bool of each
        worker: whether zeros replace its gradient. If those of all workers overflowed, the report says ``overflowed``
        in the update that emits them.
      numbers: which leaves it takes: "floating", real numbers; "inexact", complex ones, too; "number", also integers;
        or "any", unchecked. Unless it is "any", gradients of integers, of the dtype float0, are passed on as they are.
      needs_whole_leaves: whether R depends on dot products, norms or scales of leaves, and the user has not said that
        they are whole: ``update`` then refuses leaves that may be cut over another manual axis of the mesh.
      fragments: the groups of leaves that it emits in turns, a ``reducers.local.fragments.Fragments``; None where it
        emits all at once.
      weighs: how it weighs whole gradients by their dot products, a ``reducers.gram.reducer.Weighing``, which a wrapper
        may do with their means in the same exchange; None where it does not. Wrapping clears this.
    """

    axis_name: tuple[str, ...] | None = None
    needs_arrivals: bool = False
    takes_mask: TakesMask = False
    takes_weights: bool = False
    homogeneous: bool = False
    num_counted: int | None = None
    awaits: Callable[[int, int], int] | None = None
    is_mean: bool = False
    reduces: Reduces = "either"
    local_workers: LocalWorkers = "never"
    may_overflow: bool = False
    delays: bool = False
    numbers: Numbers = "any"
    needs_whole_leaves: bool = False
    fragments: Any = None
    weighs: Any = None

    def __post_init__(self) -> None:
        """Makes a tuple of the name of one axis."""
        if self.axis_name is not None:
            object.__setattr__(self, "axis_name", axes_of(self.axis_name))


class Reducer(optax.GradientTransformationExtraArgs):
    """An ``optax.GradientTransformationExtraArgs`` that combines one update per worker into one for all of them.

    Its ``Facts`` are an attribute, ``reducer.facts``, and each of them can be read as one of the reducer:
    ``reducer.takes_mask``. They survive copies and cloudpickle. All combinators of optax lose them, as does
    ``jax.tree.map``: ask the reducer itself, or build chains with ``reducers.chain``.

    Args:
      init: ``params -> state``, of one worker. An array that it returns twice, or that is one of the parameters, is
        copied, so that states can be donated.
      update: ``(updates, state, params, **extra_args) -> (updates, state)``, called where the worker axis is bound.
      **facts: those of ``Facts`` that differ from its defaults. With ``axis_name`` each call is checked.

    >>> reducer = Reducer(optax.init_empty_state, lambda g, s, p=None, **extra: (g, s), homogeneous=True)
    >>> reducer.homogeneous, reducer.needs_arrivals, isinstance(reducer, optax.GradientTransformationExtraArgs)
    (True, False, True)
    """

    facts: Facts

    def __new__(cls, init: Callable[..., Any], update: Callable[..., Any], **facts: Any) -> "Reducer":
        """Returns a transformation with these facts."""
        made = Facts(**facts)
        return cls._of(*_guarded(init, update, made) if made.axis_name else (init, update), made)

    @classmethod
    def _of(cls, init: Callable[..., Any], update: Callable[..., Any], facts: Facts) -> "Reducer":
        """Returns a reducer that does not check its calls."""
        self = super().__new__(cls, lambda params: distinct(init(params), params), update)
        self.facts = facts
        return self

    def __getattr__(self, name: str) -> Any:
        """Returns a fact."""
        if name in Facts.__dataclass_fields__:
            return getattr(self.facts, name)
        raise AttributeError(f"{type(self).__name__}.{name}: no such attribute, nor a fact of a reducer")

    def fewest_arrivals(self, *, step: int, num_workers: int) -> int:
        """Returns the fewest workers that have to arrive before an update can end; it may wait for more.

        Args:
          step: the number of the update, from 0.
          num_workers: W; all of them have to arrive if the reducer takes no ``arrival_seconds``.

        >>> from reducers.arrived.quorum import quorum
        >>> quorum("worker", num_required=3, grace_seconds=1.0).fewest_arrivals(step=0, num_workers=8)
        3
        """
        if not self.facts.needs_arrivals:
            return num_workers
        awaits = self.facts.awaits
        count = self.facts.num_counted or 1 if awaits is None else awaits(step, num_workers)
        return min(count, num_workers)

    def like(self, init: Callable[..., Any], update: Callable[..., Any], **changes: Any) -> "Reducer":
        """Returns a reducer with other functions and the facts of this one, as a wrapper does.

        Unless ``changes`` says so, the new reducer is not a mean and takes neither weights nor a ``Mask``.

        Args:
          init: the wrapper's.
          update: the wrapper's.
          **changes: facts in which the wrapper differs. With ``axis_name`` the wrapper checks its calls; without it
            only the reducer inside does.
        """
        cleared = {"is_mean": False, "takes_mask": bool(self.facts.takes_mask), "takes_weights": False, "weighs": None}
        facts = dataclasses.replace(self.facts, **cleared | changes)
        return type(self)._of(*_guarded(init, update, facts, is_outermost="axis_name" in changes), facts)

    def _replace(self, /, **changes: Any) -> NoReturn:
        """Raises TypeError, since a NamedTuple's ``_replace`` would drop the facts."""
        raise TypeError(
            f"Reducer._replace({', '.join(changes)}): would lose the reducer's facts; use like(init, update)"
        )

    __replace__ = _replace  # what ``copy.replace`` calls


TAKE_WEIGHTS = (
    "mean, coordinate_median, trimmed_mean, radial_directional, dualproj and upgrad, and local_sgd, stale, corrupt, "
    "apply_if_finite and what leaves workers out around one of these,"
)


def _guarded(
    init: Callable[..., Any], update: Callable[..., Any], facts: Facts, *, is_outermost: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the functions of a reducer, which now refuse invalid calls with one line each.

    Args:
      init: the reducer's.
      update: the reducer's.
      facts: the reducer's.
      is_outermost: whether to check everything; else only that the reducer uses the mask and weights that it is given,
        and the reducer inside it checks the rest.
    """

    def init_fn(params):
        differentiated = with_gradient(params)
        check_leaves(differentiated, facts.numbers, key="params")
        return init(params if facts.numbers == "number" else differentiated)

    def update_fn(updates, state, params=None, **extra_args):
        if not facts.takes_mask and extra_args.pop("contributes", None) is not None:
            raise ValueError("contributes: this reducer takes no mask (Reducer.takes_mask); call update without it")
        if not facts.takes_weights and extra_args.pop("weights", None) is not None:
            raise ValueError(f"weights: this reducer takes none (Reducer.takes_weights); {TAKE_WEIGHTS} do")
        if not is_outermost:
            return update(updates, state, params, **extra_args)
        given = updates
        if takes_part := facts.numbers != "any" and has_float0(updates):
            updates = without_float0(given, updates)
            params = without_float0(given, params)
        _check_call(updates, extra_args, facts)
        result, after = on_automatic_axes(update)(updates, state, params, **extra_args)
        return with_float0(given, result) if takes_part else result, carried(after, state)

    return init_fn if is_outermost and facts.numbers != "any" else init, update_fn


def _check_call(updates: Any, extra_args: Mapping[str, Any], facts: Facts) -> None:
    axes = facts.axis_name or ()
    num_workers(axes)  # raises where an axis is not bound
    check_leaves(updates, facts.numbers, key="updates")
    check_one_per_worker(updates, axes)
    check_mask(extra_args.get("contributes"))
    check_weights(extra_args.get("weights"))
    if facts.needs_whole_leaves:
        check_whole_leaves(updates, axes)
    if facts.needs_arrivals and extra_args.get("arrival_seconds") is None:
        raise TypeError(
            "arrival_seconds: missing; update, also of a chain around this reducer, takes arrival_seconds=..., the "
            "simulated seconds of all workers, [num_workers]"
        )


def as_reducer(transformation: optax.GradientTransformation, *, key: str = "transformation") -> Reducer:
    """Returns a reducer unchanged, and any other optax transformation with default facts.

    Args:
      transformation: any object with ``init`` and ``update``.
      key: its name in the error.

    Raises:
      ValueError: if it is not a transformation, such as a function that would return one.

    >>> as_reducer(optax.identity()).takes_mask
    False
    >>> as_reducer(optax.identity, key="combine")
    Traceback (most recent call last):
    ValueError: combine=identity: must be an optax transformation, and is a function; call it: identity(...)
    """
    if isinstance(transformation, Reducer):
        return transformation
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        value = in_one_line(transformation)
        hint = ""
        if callable(transformation):
            value = getattr(transformation, "__name__", value)
            hint = f", and is a function; call it: {value}(...)"
        raise ValueError(f"{key}={value}: must be an optax transformation{hint}")
    return Reducer(*optax.with_extra_args_support(transformation))


def as_inner(transformation: optax.GradientTransformation, *, key: str) -> Reducer:
    """Returns a transformation as a reducer that another one can wrap.

    Raises:
      ValueError: as ``as_reducer``, or if it does not emit every update.
    """
    reducer = as_reducer(transformation, key=key)
    if reducer.local_workers != "never":
        raise ValueError(f"{key}: must emit every update; a reducer of local workers has to be the outermost")
    return reducer


def located(reducer: Reducer, where: Callable[[], contextlib.AbstractContextManager[Any]]) -> Reducer:
    """Returns a reducer with the same facts, whose functions run in a context that says where an error belongs.

    Args:
      reducer: any.
      where: makes the context of one call.
    """

    def init_fn(params):
        with where():
            return reducer.init(params)

    def update_fn(updates, state, params=None, **extra_args):
        with where():
            return reducer.update(updates, state, params, **extra_args)

    return Reducer._of(init_fn, update_fn, reducer.facts)


def chain(*transformations: optax.GradientTransformation) -> Reducer:
    """Chains transformations as ``optax.chain`` does, and merges the facts of the reducers among them.

    The chain needs arrival times if one of its reducers does, and waits for as many workers as the one that waits for
    most; it takes a mask if it has reducers and all of them do; it is homogeneous if every transformation is known to
    be; it counts as many workers as the reducer that counts fewest; its workers are local whenever those of a reducer
    are; it is for gradients or updates if one of its reducers is, and takes the leaves that all of them take. Unlike
    ``optax.chain`` it checks a gradient before an optimizer sees it, whose state would hide that ``jax.shard_map`` has
    summed it.

    Raises:
      ValueError: if one reducer is for gradients and another for updates; if ``update`` is given a gradient that
        ``jax.shard_map`` has already summed; if, beside a reducer, it is given the loss, such as the ``value_fn`` of
        ``optax.lbfgs``: with losses of their own the workers' parameters would diverge. ``optax.chain`` takes an
        averaged loss.

    >>> from reducers.sums.mean import mean
    >>> chain(optax.clip(1.0), mean("worker")).takes_mask
    'whole'
    """
    links = [as_reducer(t, key=f"transformations[{i}]") for i, t in enumerate(transformations)]
    found = [t for t in transformations if isinstance(t, Reducer)]
    late = [r for r in found if r.needs_arrivals]
    init, update = optax.chain(*links)

    axes = tuple(dict.fromkeys(axis for r in found for axis in r.axis_name or ()))

    def update_fn(updates, state, params=None, **extra_args):
        given = sorted(name for name in OF_THE_LOSS & extra_args.keys() if extra_args[name] is not None)
        if given and found:
            raise ValueError(
                f"{given[0]}: is given to a chain with a reducer, and one that is each worker's own parts the "
                "parameters of the workers; average it over them, and use optax.chain (docs/optax.md has an example)"
            )
        if axes:  # before an optimizer, whose state may make the summed gradient differ between workers
            num_workers(axes)  # raises where an axis is not bound
            check_one_per_worker(without_float0(updates, updates), axes)
        return update(updates, state, params, **extra_args)

    masks = {r.takes_mask for r in found}
    reduces = {r.reduces for r in found} - {"either"}
    if len(reduces) > 1:
        raise ValueError("transformations: one reduces gradients and another one updates")
    facts = Facts(
        axis_name=axes or None,
        needs_arrivals=bool(late),
        takes_mask="whole" if masks == {"whole"} else bool(masks) and all(masks),
        takes_weights=bool(found) and all(r.takes_weights for r in found),
        homogeneous=all(link.homogeneous for link in links),
        num_counted=min((r.num_counted for r in found if r.num_counted is not None), default=None),
        awaits=(lambda step, n: max(r.fewest_arrivals(step=step, num_workers=n) for r in late)) if late else None,
        needs_whole_leaves=any(r.needs_whole_leaves for r in found),
        fragments=next((r.fragments for r in found if r.fragments is not None), None),
        reduces=reduces.pop() if reduces else "either",
        may_overflow=any(r.may_overflow for r in found),
        delays=any(r.delays for r in found),
        local_workers=max((r.local_workers for r in found), key=typing.get_args(LocalWorkers).index, default="never"),
        numbers=max((r.numbers for r in found), key=typing.get_args(Numbers).index, default="any"),
    )
    return Reducer._of(init, update_fn, facts)  # its reducers check their calls themselves


class PlacedError(ValueError):
    """An error whose message begins with the complete path of an option: ``combine.combine.num_required=9``."""


@contextlib.contextmanager
def _placed(where: str) -> Iterator[None]:
    """Puts the path of a reducer's block before an error that its functions raise.

    Subclasses of ValueError, such as ``PlacedError``, stay as they are.
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise PlacedError(f"{where}.{error}").with_traceback(error.__traceback__) from None


class ReducerRegistry(Registry):
    """A registry of reducers, in which a block may hold another reducer: a name, a block, or a transformation.

    A constructor's parameter with the annotation ``Combine`` is such a reducer; "mean" is its default in a block.

    >>> from reducers import REDUCERS
    >>> REDUCERS.check({"name": "deadline", "deadline_seconds": 2.0, "combine": {"name": "adasm"}})
    Traceback (most recent call last):
    ValueError: combine.name='adasm': unknown name; did you mean 'adasum'?
    """

    def build(self, block: Block, *, where: str = "", **given: Any) -> Any:
        """Checks a block, builds the reducers inside it, and calls its constructor.

        Errors of a reducer inside another one name the path of its option, whether its constructor or its functions
        raise them.

        Args:
          block: a name, or a mapping with a name.
          where: see ``Registry.build``.
          **given: see ``Registry.build``; and ``encode``, which takes the innermost reducer and returns the one in its
            place; None leaves it. The innermost one is the first that has no reducer inside it, or that is an
            object already.
        """
        made = super().build(block, where=where, **given)
        if where:
            made = located(as_reducer(made), lambda: _placed(where))
        return made if self.held(name_of(block)) else self.adopt(made, **given)

    def adopt(self, made: Any, *, encode: Callable[[Reducer], Reducer] | None = None, **given: Any) -> Any:
        """Returns the innermost reducer, encoded."""
        del given
        return made if encode is None else encode(as_reducer(made))
