"""The report of a reducer on its last update: one record in its state, which the train step and wrappers read."""

import functools
import operator
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.mask import has_weight, own_part

# Metrics of the time of an update; an update that is dropped takes it, too.
TIME = ("step_seconds", "contributors")


class ReportError(ValueError):
    """Two reducers, side by side or one inside the other, report something that only one of them can."""


class Mix(NamedTuple):
    """How a worker goes on where the shared parameters z have just changed: from a mixture of its own and z.

    Attributes:
      weight: [] float32, a, of its own parameters.
      waits: like params, [] bool each: whether the report's drift holds x, the worker's parameters before the change.
        Its drift is then a (x - z), which can be known only with the z after the change.
    """

    weight: Any
    waits: Any


class Report(NamedTuple):
    """Facts about a reducer's last update, in the field ``report`` of its state.

    A wrapper that has something to add makes its own report from that of the reducer inside it. A state without a
    report belongs to a reducer that counts all workers, emits every update and has no metrics.

    Attributes:
      counted: [] bool, whether the update counts this worker; it differs between workers. None counts all.
      emitted: [] bool, the same on all workers: whether the update emitted anything. If not, everything shared stays as
        it was. None for a reducer that emits every update. For a model in P fragments [P]: which were emitted.
      drift: like params, this worker's own: its parameters minus the shared ones; None where it has none.
      overflowed: [] bool, the same on all workers: whether the update overflowed, and is zero instead. None for a
        reducer whose updates cannot overflow.
      metrics: name -> scalar, with the same names after every update. Some names have a meaning: "step_seconds" is the
        simulated duration of the step, "contributors" is how many workers it counts, and "bytes_per_worker" the bytes
        that a worker would have sent on a wire in this update, where the program sends something else than it
        simulates, such as quantised updates in float32; it takes the place of the number that ``traffic`` counts.
      mix: a ``Mix`` if ``drift`` holds something else in some updates, which ``drift_from`` then reads; else None.
    """

    counted: Any = None
    emitted: Any = None
    drift: Any = None
    overflowed: Any = None
    metrics: dict[str, Any] = {}  # noqa: RUF012 - nobody writes into it
    mix: Any = None

    def with_metrics(self, metrics: dict[str, Any]) -> "Report":
        """Returns the report with further metrics.

        Raises:
          ReportError: if it has one of the same name.

        >>> Report(metrics={"bits": 4.0}).with_metrics({"bits": 8.0})
        Traceback (most recent call last):
        reducers.report.ReportError: metrics: two reducers report bits
        """
        if clash := sorted(self.metrics.keys() & metrics.keys()):
            raise ReportError(f"metrics: two reducers report {', '.join(clash)}")
        return self._replace(metrics={**self.metrics, **metrics})

    def dropped_unless(self, is_kept: jax.Array, before: "Report") -> "Report":
        """Returns the report of an update that a wrapper drops unless ``is_kept``; its time has passed anyway.

        >>> new, old = (Report(metrics={"step_seconds": x, "bits": x}) for x in (2.0, 1.0))
        >>> new.dropped_unless(False, before=old).metrics
        {'step_seconds': 2.0, 'bits': Array(1., dtype=float32, weak_type=True)}
        """

        def keep(name, new):
            return new if name in TIME else jnp.where(is_kept, new, before.metrics[name])

        return self._replace(metrics={name: keep(name, new) for name, new in self.metrics.items()})

    def if_called(self, is_called: jax.Array, *, num_workers: int) -> "Report":
        """Returns the report of a wrapper that calls the reducer inside it in some updates only.

        In the others all workers count, and no time passes; the other metrics are those of the last call.

        Args:
          is_called: [] bool.
          num_workers: W.

        >>> report = Report(jnp.array(False), metrics={"contributors": jnp.float32(1)})
        >>> report.if_called(False, num_workers=2).metrics["contributors"]
        Array(2., dtype=float32)
        """
        waiting = {"step_seconds": 0.0, "contributors": float(num_workers)}
        times = {
            name: jnp.where(is_called, self.metrics[name], jnp.float32(waiting[name]))
            for name in TIME
            if name in self.metrics
        }
        return self._replace(
            counted=None if self.counted is None else self.counted | ~jnp.asarray(is_called),
            overflowed=None if self.overflowed is None else self.overflowed & is_called,
            metrics={**self.metrics, **times},
        )


def report(state: Any) -> Report:
    """Returns the report of a reducer's state, or of a chain's: the outermost one, in any combinator of optax.

    Reports of several reducers, side by side in a chain, are joined. The field ``metrics`` of a state that has no
    report, a dict from name to scalar, is one too.

    Args:
      state: the state of a reducer, or of transformations with reducers among them.

    Raises:
      ReportError: if two of them have metrics of the same name, or workers with a drift.

    >>> import optax
    >>> class State(NamedTuple):
    ...   report: Report
    >>> report((optax.EmptyState(), (State(Report(metrics={"bits": 4.0})), optax.TraceState({"w": 0.0})))).metrics
    {'bits': 4.0}
    """
    found = _outermost(state)
    if len(found) == 1:
        return found[0]
    joined = Report()
    for each in found:
        joined = joined.with_metrics(each.metrics)
    drifts = [each.drift for each in found if each.drift is not None]
    if len(drifts) > 1:
        raise ReportError("drift: two reducers have workers with parameters of their own")
    return joined._replace(
        counted=join_known(operator.and_, [each.counted for each in found]),
        emitted=join_known(operator.and_, [each.emitted for each in found]),
        drift=drifts[0] if drifts else None,
        mix=next((each.mix for each in found if each.mix is not None), None),
        overflowed=join_known(operator.or_, [each.overflowed for each in found]),
    )


def own_params(params: Any, state: Any) -> Any:
    """Returns the parameters at which this worker evaluates its gradient: the shared ones, plus its drift if any.

    Args:
      params: the shared parameters.
      state: the state of the worker's reducer, or of a chain with it.

    >>> own_params(jnp.ones(2), Report(drift=jnp.array([0.5, 0.0])))
    Array([1.5, 1. ], dtype=float32)
    """
    drift = drift_from(params, report(state))
    if drift is None:
        return params
    moved = lambda p, u: p if u is None else (p + u).astype(p.dtype)  # noqa: E731 - integers have no drift
    return jax.tree.map(moved, params, drift)


def drift_from(params: Any, own: Report) -> Any:
    """Returns a worker's parameters minus the shared ones; None where it has no parameters of its own.

    Args:
      params: the shared parameters.
      own: the worker's report.

    >>> drift_from(jnp.ones(2), Report(drift=jnp.full(2, 3.0), mix=Mix(0.5, jnp.array(True))))
    Array([1., 1.], dtype=float32)
    """
    if own.mix is None:
        return own.drift

    def settled(z, u, waits):  # integers have no drift
        return None if u is None else jnp.where(waits, own.mix.weight * (u - z), u).astype(u.dtype)

    return jax.tree.map(settled, params, own.drift, own.mix.waits)


def who_counts(*, contributes: Any = None, weights: Any = None, inside: Report | None = None) -> Any:
    """Returns whether an update counts this worker, [] bool, given all that may leave it out; None counts all workers.

    Args:
      contributes: the bool or the ``Mask`` that the update got; None counts all.
      weights: [], this worker's; a weight of 0 is not counted. None counts all.
      inside: the report of the reducer that combines the updates, after it did.

    >>> who_counts(contributes=True, weights=jnp.float32(0), inside=Report(jnp.array(True)))
    Array(False, dtype=bool)
    """
    weighs = None if weights is None else has_weight(weights)
    said = [own_part(contributes), weighs, None if inside is None else inside.counted]
    return join_known(operator.and_, [jnp.asarray(each, bool) for each in said if each is not None])


def all_overflowed(overflowed: Any, *, counted: Any, axes: tuple[str, ...]) -> jax.Array:
    """Returns whether the gradients of all counted workers overflowed, [] bool, with one all-reduce of a number.

    Args:
      overflowed: [] bool, whether zeros stand in for this worker's gradient, which overflowed.
      counted: [] bool, as ``who_counts`` returns it.
      axes: the worker axes, outer first.
    """
    is_good = join_known(operator.and_, [~jnp.asarray(overflowed, bool), counted])
    return lax.psum(is_good.astype(jnp.int32), axes) == 0


def leaves_out_twice(state: Any) -> bool:
    """Returns whether several reducers of a state, one inside another or side by side, each leave workers out.

    >>> leaves_out_twice([Report(True), Report(metrics={"bits": 4.0})])
    False
    """
    is_report = lambda node: isinstance(node, Report)  # noqa: E731
    found = jax.tree.leaves(state, is_leaf=is_report)
    return sum(is_report(each) and each.counted is not None for each in found) > 1


def _outermost(state: Any) -> list[Report]:
    """Returns the reports of a state that are not inside another report."""
    own = state if isinstance(state, Report) else getattr(state, "report", None)
    if isinstance(own, Report):
        return [own]
    own = getattr(state, "metrics", None)
    found = [Report(metrics=dict(own))] if isinstance(own, dict) else []
    for child in jax.tree.leaves(state, is_leaf=lambda node: node is not state):
        if child is not own and child is not state:  # else seen already, or an array
            found += _outermost(child)
    return found


def join_known(join: Any, values: list[Any]) -> Any:
    """Joins those of the values that are not None; None if there are none."""
    found = [value for value in values if value is not None]
    return functools.reduce(join, found) if found else None
