"""One row per reducer and per encoding: what it promises. The laws are in tests/test_reducers.py."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

import reducers
from reducers.wrappers import communication
from tests import gram_oracles


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the law table.

    Attributes:
      name: key of REDUCERS.
      oracle: float64 NumPy reference of the first update of one leaf, [W, ...] -> [...]; None for encodings.
      granularity: what the oracle is given: each "layer" (leaf), or the whole "model" as one vector.
      kwargs: options of the reducer.
      consensus: R(g, ..., g) = g.
      permutation_invariant: R(permuted g) = R(g).
      homogeneous: R(c g) = c R(g), the fact of that name. So are the next six facts of ``Reducer``.
      needs_arrivals: its update requires ``arrival_seconds``.
      takes_mask: its update accepts ``contributes``.
      left_out: what the oracle is given for workers that a mask leaves out: nothing, or zeros; None for no oracle.
      num_counted: how many workers' batches each update counts, where the rule fixes it.
      reduces: gradients, updates, or either.
      local_workers: when workers have parameters of their own.
      numbers: which leaves it takes.
      min_workers: with fewer workers it must refuse.
      resists: how many of 8 workers may send anything.
      stays: whether a result [m] is where the rule promises it to be, given the gradients of all other workers.
      keeps_nan: whether a NaN stays in its state for good, since workers go on from parameters of their own.
      replicated_by_type: the replication test under nested vmap can see that all workers hold the same result; a result
        that ends in ppermute cannot be seen and rests on the bitwise test.
      in_parts: what it makes of leaves that no device has whole: the same, up to rounding, or something else; or it
        refuses them.
      largest_difference: between layouts, after 20 steps.
    """

    name: str
    oracle: Callable[[np.ndarray], np.ndarray] | None = None
    granularity: Literal["layer", "model"] = "layer"
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    consensus: bool = True
    permutation_invariant: bool = True
    homogeneous: bool = True
    needs_arrivals: bool = False
    takes_mask: bool = False
    left_out: Literal["nothing", "zeros"] | None = "nothing"
    num_counted: int | None = None
    reduces: str = "either"
    local_workers: str = "never"
    numbers: str = "inexact"
    min_workers: int = 1
    resists: int = 0
    stays: Callable[[np.ndarray, np.ndarray], bool] | None = None
    keeps_nan: bool = False
    replicated_by_type: bool = True
    in_parts: Literal["same", "differs", "refused"] = "same"
    largest_difference: float = 1e-6

    def make(self, axis_name, **more):
        """Makes the reducer; what is compiled of this method is kept, however many laws use it."""
        return reducers.make(self.name, axis_name=axis_name, **self.kwargs, **more)

    @property
    def shared(self) -> Mapping[str, np.ndarray]:
        """Keyword arguments of its update that are the same on all of 8 workers."""
        return TIMES if self.needs_arrivals else {}

    @property
    def flags(self) -> Sequence[str]:
        """Flags of a run of train.py with it, at its place."""
        return (
            f"--config.reducer.name={self.name.partition('[')[0]}",
            *(f"--config.reducer.{key}={value}" for key, value in self.kwargs.items()),
            *(("--config.arrivals.name=lognormal",) if self.needs_arrivals else ()),
            *((f"--config.reducer_on={self.reduces}",) if self.reduces != "either" else ()),
            *(("--config.ema_decay=None",) if self.local_workers == "always" else ()),
        )


# Rounding of dot products, which are known to the square root of it, and the least normal number, on CPU a zero.
SLACK, LEAST = 1e-3, 2.0**-126


def between(result, honest):
    """No coordinate is outside of those of the honest gradients."""
    low, high = honest.min(0), honest.max(0)
    slack = 1e-6 * np.maximum(abs(low), abs(high)) + LEAST
    return bool(((low - slack <= result) & (result <= high + slack)).all())


def beside(result, honest):
    """No coordinate is farther outside of those of the honest gradients than these are from each other."""
    low, high = honest.min(0), honest.max(0)
    wide = high / 2 - low / 2
    slack = 1e-6 * np.maximum(abs(low), abs(high)) + LEAST
    return bool((abs(result / 2 - (low / 4 + high / 4)) <= 1.5 * wide + slack).all())


def around(result, honest, *, radii):
    """The distance from the honest gradients' mean is at most so many times that of the farthest of them."""
    center = honest.mean(0)
    slack = SLACK * _norms(honest).max() + LEAST * len(center) ** 0.5
    return bool(np.linalg.norm(result - center) <= radii * _norms(honest - center).max() + slack)


def near_the_clipped(result, honest, *, radius):
    """The mean of the clipped honest gradients, but for what the others, at most 3 in 8, can add or leave out."""
    lengths = np.maximum(_norms(honest), LEAST)[:, None]
    clipped = honest * np.minimum(1, radius / lengths)
    return bool(np.linalg.norm(result - clipped.mean(0)) <= (2 * 3 / 7 + SLACK) * radius)


def one_of(result, honest):
    """An honest gradient, or another one whose nearest neighbour is closer to it than to an honest one its farthest."""
    # Krum's choice f' of those who send anything has n - 2 f - 1 honest neighbours at least among its n - f - 2.
    return around(result, honest, radii=1 + 2 * len(honest) ** 0.5)


def outvoted(result, honest):
    """Where the honest workers have one sign, it wins."""
    agreed = np.where(
        (np.sign(honest) == np.sign(honest[0])).all(0) & (abs(honest) >= LEAST).all(0), np.sign(honest[0]), 0
    )
    return bool(((result == agreed) | (agreed == 0)).all() and (abs(result) <= 1).all())


def _norms(g):
    scale = abs(g).max() or 1.0
    return scale * np.linalg.norm(g / scale, axis=1)


def adacons(g):
    """One step of the authors' code, without what it adds to norms; float64, and 0 for gradients of 0."""
    unit = np.divide(g, np.linalg.norm(g, axis=1, keepdims=True), out=np.zeros_like(g), where=g != 0)
    weights = unit @ g.sum(0) / len(g)
    return weights @ unit / (weights.sum() or 1)


def adasum(g):
    """The tree of the paper, neighbours first, an odd one out going up unpaired; float64."""
    level = list(g)
    while len(level) > 1:
        paired = [_pair(a, b) for a, b in zip(level[0::2], level[1::2], strict=False)]
        level = paired + level[2 * len(paired) :]
    return level[0]


def around_the_median(g, byzantine):
    """The mean of the values nearest to the median, by their distances."""
    far = np.argsort(np.abs(g - np.median(g, axis=0)), axis=0, kind="stable")
    f = min(byzantine, (len(g) - 1) // 2)
    return np.take_along_axis(g, far[: len(g) - f], 0).mean(0)


def a_little(honest):
    """The mean, and 1.5 standard deviations more."""
    mean = honest.mean(0)
    return mean + 1.5 * np.sqrt(np.square(honest - mean).sum(0) / max(len(honest) - 1, 1))


def bucketed(g, size):
    """The means of buckets of workers in the order of the first update."""
    key = jax.random.fold_in(jax.random.key(0), 0)
    order = np.argsort(jax.random.uniform(key, (len(g),)))
    return [g[order[i : i + size]].mean(0) for i in range(0, len(g), size)]


def trimmed(g, num_trimmed):
    """The mean without the largest and the smallest values, at least of one."""
    ordered = np.sort(g, axis=0)
    k = min(num_trimmed, (len(g) - 1) // 2)
    return ordered[k : len(g) - k].mean(0)


def _pair(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - (dot / (2 * aa) if aa else 0)) * a + (1 - (dot / (2 * bb) if bb else 0)) * b


# No two of the 8 workers arrive at the same time: a tie goes by index, and then the order of the workers matters.
SECONDS = np.array([2.0, 1.0, 4.0, 3.0, 5.0, 9.0, 6.0, 1.5], np.float32)
TIMES = {"arrival_seconds": SECONDS}


def first(num_required, g):
    """The gradients that arrive first."""
    return g[np.argsort(SECONDS[: len(g)], kind="stable")[:num_required]]


def within_grace(num_required, grace, g):
    """The first gradients, and those that arrive within a time of grace after them."""
    seconds = SECONDS[: len(g)]
    return g[seconds <= np.sort(seconds)[num_required - 1] + grace]


def nothing_yet(g):
    """Nothing is due in the first update, which the oracle is of."""
    return np.zeros_like(g[0])


APART = {"oracle": nothing_yet, "consensus": False, "reduces": "updates"}
WHOLE = {"granularity": "model", "takes_mask": True}
# A worker that is left out keeps its place in the tree, where its zeros are neutral.
OF_A_TREE = {"permutation_invariant": False, "takes_mask": True, "left_out": "zeros"}

CASES = (
    Case("adacons", adacons, consensus=False, homogeneous=False, **WHOLE),
    Case(
        "adaptive_batch",
        lambda g: g.mean(0),
        kwargs={"rule": "norm_test"},
        homogeneous=False,
        reduces="gradients",
        local_workers="between_rounds",
        min_workers=2,
    ),
    Case("aligned_mtl", gram_oracles.aligned_mtl, **WHOLE),
    Case("agreement_scaled_mean", gram_oracles.agreement_scaled_mean, **WHOLE),
    Case(
        "corrupt",
        lambda g: np.concatenate([g[1:2], g[1:]]).mean(0),
        kwargs={"how": "copy"},
        permutation_invariant=False,
        takes_mask=True,
        left_out=None,
        min_workers=2,
    ),
    Case(
        "corrupt",
        lambda g: np.concatenate([a_little(g[1:])[None], g[1:]]).mean(0),
        kwargs={"how": "little"},
        permutation_invariant=False,
        takes_mask=True,
        left_out=None,
        min_workers=2,
    ),
    Case(
        "geometric_median",
        gram_oracles.geometric_median,
        resists=3,
        stays=functools.partial(around, radii=1 + 2 * 5 / 2),  # 1 + 2 (n - f) / (n - 2 f)
        **WHOLE,
    ),
    Case(
        "krum",
        functools.partial(gram_oracles.krum, byzantine=2),
        kwargs={"num_byzantine": 2},
        resists=2,
        stays=one_of,
        **WHOLE,
    ),
    Case(
        "centred_clipping",
        functools.partial(gram_oracles.centred_clipping, radius=3.0),
        kwargs={"radius": 3.0},
        consensus=False,
        homogeneous=False,
        resists=3,
        stays=functools.partial(near_the_clipped, radius=3.0),
        **WHOLE,
    ),
    Case(
        "centred_clipping",
        functools.partial(gram_oracles.centred_clipping, radius=5.0, steps=4),
        kwargs={"radius": 5.0, "num_steps": 4, "start": "zero"},
        homogeneous=False,
        **WHOLE,
    ),
    Case(
        "bucketing",
        lambda g: np.median(bucketed(g, 2), axis=0),
        kwargs={"combine": "coordinate_median"},
        permutation_invariant=False,
        takes_mask=True,
        left_out=None,
        numbers="floating",
    ),
    Case(
        "nearest_neighbour_mixing",
        lambda g: np.median(gram_oracles.neighbours(g, byzantine=2), axis=0),
        kwargs={"num_byzantine": 2, "combine": "coordinate_median"},
        resists=2,
        stays=functools.partial(around, radii=3 * 8**0.5),  # in each coordinate it is between means at 3 radii
        numbers="floating",
        **WHOLE,
    ),
    Case(
        "bucketing",
        lambda g: np.mean(bucketed(g, 2), axis=0),
        takes_mask=True,
        left_out=None,
    ),
    Case(
        "nearest_neighbour_mixing",
        lambda g: gram_oracles.krum(gram_oracles.neighbours(g, byzantine=2), byzantine=2),
        kwargs={"num_byzantine": 2, "combine": "krum"},
        resists=2,
        stays=functools.partial(around, radii=3 * 8**0.5),
        **WHOLE,
    ),
    Case("cagrad", gram_oracles.cagrad, consensus=False, **WHOLE),
    Case("gradvac", gram_oracles.gradvac, kwargs={"order": "workers"}, permutation_invariant=False, **WHOLE),
    Case("imtl_g", gram_oracles.imtl_g, **WHOLE),
    Case(
        "nash_mtl",
        gram_oracles.nash_mtl,
        kwargs={"max_norm": None},
        consensus=False,
        homogeneous=False,
        largest_difference=5e-5,  # steps of length 2.8 each, whose weights are of nearly dependent gradients
        **WHOLE,
    ),
    Case("mgda", gram_oracles.mgda, **WHOLE),
    Case("multi_krum", functools.partial(gram_oracles.krum, selected=None), resists=1, stays=one_of, **WHOLE),
    Case("pcgrad", gram_oracles.pcgrad, kwargs={"order": "workers"}, permutation_invariant=False, **WHOLE),
    Case(
        "radial_directional",
        gram_oracles.radial_directional,
        takes_mask=True,
        largest_difference=5e-6,  # in these 20 steps the directions add up to as little as 2.4 % of their lengths
    ),
    Case("dualproj", gram_oracles.dualproj, **WHOLE),
    Case(
        "fairgrad",
        gram_oracles.fairgrad,
        consensus=False,
        homogeneous=False,
        largest_difference=2e-5,  # cosines with condition numbers up to 180: float32 moves it by 1e-6 to 8e-6
        **WHOLE,
    ),
    Case("upgrad", gram_oracles.upgrad, **WHOLE),
    Case("adasum", adasum, **OF_A_TREE),
    Case("adasum", adasum, kwargs={"algorithm": "gather"}, in_parts="refused", **OF_A_TREE),
    Case("adasum", adasum, kwargs={"algorithm": "halving"}, in_parts="refused", **OF_A_TREE),
    Case(
        "adasum",
        lambda g: adasum((g[::2] + g[1::2]) / 2),
        kwargs={"group_size": 2},
        min_workers=2,
        **OF_A_TREE | {"left_out": None},
    ),
    Case(
        "backup_workers",
        lambda g: first(3, g).mean(0),
        kwargs={"num_required": 3},
        needs_arrivals=True,
        num_counted=3,
        min_workers=3,
        numbers="number",
    ),
    Case(
        "coordinate_median",
        lambda g: np.median(g, axis=0),
        takes_mask=True,
        resists=3,
        stays=between,
        numbers="floating",
    ),
    Case(
        "deadline",
        lambda g: g[SECONDS[: len(g)] <= 2.5].mean(0),
        kwargs={"deadline_seconds": 2.5},
        needs_arrivals=True,
        numbers="number",
    ),
    Case(
        "dynamic_backup_workers",
        lambda g: g.mean(0),  # the first step waits for all
        kwargs={"warmup_steps": 1},
        needs_arrivals=True,
        homogeneous=False,
    ),
    Case(
        "elastic_averaging",
        kwargs={"every_steps": 2},
        homogeneous=False,
        local_workers="between_rounds",
        keeps_nan=True,
        **APART,
    ),
    Case("gossip", local_workers="always", keeps_nan=True, **APART),
    Case(
        "gossip",
        kwargs={"topology": "one_peer_exponential", "order": "adapt_then_combine"},
        local_workers="always",
        keeps_nan=True,
        **APART,
    ),
    Case(
        "local_sgd",
        kwargs={"every_steps": 2},
        homogeneous=False,
        local_workers="between_rounds",
        **APART,
    ),
    Case(
        "local_sgd",
        kwargs={"every_steps": 2, "delay_steps": 1, "combine": "adasum"},
        keeps_nan=True,
        homogeneous=False,
        local_workers="between_rounds",
        largest_difference=5e-6,  # the rounding of dot products, added up in drifts and in an optimizer of each worker
        **APART,
    ),
    Case(
        "quorum",
        lambda g: within_grace(3, 1.0, g).mean(0),
        kwargs={"num_required": 3, "grace_seconds": 1.0},
        needs_arrivals=True,
        min_workers=3,
        numbers="number",
    ),
    Case(
        "meamed",
        functools.partial(around_the_median, byzantine=1),
        takes_mask=True,
        min_workers=3,
        resists=1,
        stays=beside,
        numbers="floating",
    ),
    Case("mean", lambda g: g.mean(0), takes_mask=True, numbers="number"),
    Case(
        "sign_majority",
        lambda g: np.sign(np.sign(g).sum(0)),
        consensus=False,
        homogeneous=False,
        takes_mask=True,
        resists=3,
        stays=outvoted,
        numbers="floating",
    ),
    Case(
        "stale",
        nothing_yet,
        kwargs={"delay_steps": 3},
        consensus=False,
        homogeneous=False,
        takes_mask=True,
    ),
    Case("sum", lambda g: g.sum(0), consensus=False, takes_mask=True, numbers="number"),
    Case(
        "trimmed_mean",
        functools.partial(trimmed, num_trimmed=1),
        takes_mask=True,
        min_workers=3,
        resists=1,
        stays=between,
        numbers="floating",
    ),
    Case("trimmed_mean", lambda g: g.mean(0), kwargs={"num_trimmed": 0}, takes_mask=True, numbers="floating"),
)

FIRST = {case.name: case for case in reversed(CASES)}  # of each reducer its first row


@dataclasses.dataclass(frozen=True)
class Sending(Case):
    """A row of an encoding, around the mean.

    Attributes:
      name: key of COMMUNICATIONS.
      any_rule: whether it can be around reducers other than the mean.
      keeps: the leaves of ``tree_of`` of which it keeps residuals.
      scales_exactly: whether gradients times a power of two give the same bits, times that power.
    """

    homogeneous: bool = False
    takes_mask: bool = True
    left_out: None = None
    numbers: str = "number"
    any_rule: bool = True
    keeps: tuple[str, ...] = ()
    scales_exactly: bool = True
    in_parts: Literal["same", "differs", "refused"] = "refused"

    def make(self, axis_name, *, rule="mean", **more):
        """Makes the encoding around a rule."""
        inner = reducers.make(rule, axis_name=axis_name)
        return communication.make(self.name, reducer=inner, axis_name=axis_name, **self.kwargs, **more)


LARGE = ("large", "nested/matrix")
FOUR_BITS = {"name": "quantised", "bits": 4, "min_elements": 6}
SENDINGS = (
    Sending("full", homogeneous=True, in_parts="same"),
    Sending(
        "half",
        kwargs={"initial_scale": 1.0},
        numbers="floating",
        largest_difference=1e-3,
        scales_exactly=False,
        in_parts="same",
    ),
    Sending("quantised", kwargs={"bits": 4, "min_elements": 6}, homogeneous=True),
    Sending(
        "quantised",
        kwargs={"bits": 3, "norm": "l2", "bucket": 32, "exchange": "gather", "error_feedback": "on", "min_elements": 6},
        keeps=LARGE,
    ),
    Sending("dynamic_bits", kwargs={"min_elements": 6}),
    Sending("top_k", kwargs={"ratio": 0.1, "min_elements": 6}, keeps=LARGE),
    Sending("top_k", kwargs={"ratio": 0.1, "min_elements": 6, "exchange": "scatter", "then": FOUR_BITS}, keeps=LARGE),
    Sending("random_k", kwargs={"ratio": 0.2, "min_elements": 6}, keeps=LARGE),
    Sending("sign", kwargs={"min_elements": 6}, keeps=LARGE),
    Sending("sign", kwargs={"min_elements": 6, "error_feedback": "off", "exchange": "gather"}, homogeneous=True),
    # Rounding of the sums in the factors grows from step to step.
    Sending(
        "low_rank",
        kwargs={"rank": 1},
        any_rule=False,
        largest_difference=1e-4,
        keeps=("large", "nested/matrix", "nested/vector", "scalar"),
    ),
    Sending(
        "low_rank",
        kwargs={"rank": 2, "then": "half", "min_compression": 0.0, "error_feedback": "off"},
        any_rule=False,
        largest_difference=1e-3,
    ),
    Sending(
        "by_pattern",
        kwargs={
            "rules": (
                ("matrix$", {"name": "sign", "min_elements": 1}),
                ("large", {"name": "low_rank", "rank": 2}),
                ("", "full"),
            )
        },
        any_rule=False,
        largest_difference=1e-4,
        keeps=LARGE,
    ),
    Sending("float8", kwargs={"min_elements": 6}),
    Sending(
        "float8",
        kwargs={
            "format": "e5m2",
            "bucket": 32,
            "rounding": "random",
            "exchange": "gather",
            "error_feedback": "on",
            "min_elements": 6,
        },
        keeps=LARGE,
    ),
)

ROWS = {"-".join((case.name, *map(str, case.kwargs.values()))): case for case in CASES}
NAMES = list(ROWS)  # of reducers
ROWS |= {f"{sending.name}-{i}": sending for i, sending in enumerate(SENDINGS)}
