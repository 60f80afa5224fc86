"""Mean time of an epoch by number of workers, with a parameter server that takes one gradient after another."""

import heapq
from typing import Any

import jax
import numpy as np

from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide, untested
from reducers import arrivals

MODEL = "paper_cluster"
BATCH, IMAGES = 32, 1_281_167
MODES = ("asynchronous", "synchronous")
SPEEDS = (*MODES, "synchronous_median")  # images a second
BACKUPS = {25: 0, 50: 0, 53: 3, 106: 6, 200: 0, 212: 12, 424: 24}  # workers -> backups, when synchronous
GRADIENTS = {"smoke": 3_000, "laptop": 60_000}
SERVERS = {"none": 0.0, "2,850 images/s": BATCH / 2850, "2,300 images/s": BATCH / 2300}  # seconds that a gradient takes
FITTED = "2,850 images/s"  # the server that the rule is about
SYNCHRONOUS = 2300.0  # images a second with 200 workers
NEAR, LITTLE = 0.15, 0.1  # shares of the synchronous rate, and of the epoch's time
DIGEST = "READ-2nd: TensorFlow, OSDI 2016, section 6.3"
PUBLISHED = {  # images a second by number of workers
    "asynchronous": {25: 400.0, 50: 1100.0, 200: 2850.0},
    "synchronous": {25: 350.0, 50: 1000.0, 200: SYNCHRONOUS},
}
PAPER = {
    (25, 25, FITTED): f"about 400 and 350 images a second [{DIGEST}]",
    (50, 50, FITTED): f"about 1,100 and 1,000 images a second [{DIGEST}]",
    (200, 200, FITTED): f"about 2,850 (fitted) and 2,300 images a second [{DIGEST}]",
    (212, 200, FITTED): "asynchronous epochs no shorter than with 106 [MEM med: arXiv 1604.00981]",
}


def asynchronous_seconds(tasks: np.ndarray, *, server_seconds: float) -> float:
    """Returns the mean time between updates of a server that takes one gradient after another, first come first.

    A worker begins its next task when the server has taken its gradient.

    Args:
      tasks: seconds of each worker's tasks, [T, W]; the first sixth of all gradients, in which queues form, does not
        count.
      server_seconds: time of the server for one gradient.

    >>> round(asynchronous_seconds(np.ones((600, 2)), server_seconds=0.0), 2)  # two a second
    0.5
    >>> round(asynchronous_seconds(np.ones((60, 20)), server_seconds=0.25), 2)  # the server is the limit
    0.25
    """
    waiting = [(seconds, worker, 1) for worker, seconds in enumerate(tasks[0].tolist())]
    heapq.heapify(waiting)
    free, taken, begun = 0.0, [], 0
    while begun < len(tasks):  # until a worker is at the end of its tasks
        arrived, worker, begun = heapq.heappop(waiting)
        free = max(arrived, free) + server_seconds
        taken.append(free)
        if begun < len(tasks):
            heapq.heappush(waiting, (free + float(tasks[begun, worker]), worker, begun + 1))
    first = len(taken) // 6
    return float(taken[-1] - taken[first]) / (len(taken) - 1 - first)


def synchronous_seconds(arrived: np.ndarray, *, required: int, server_seconds: float) -> np.ndarray:
    """Returns the time of each step that ends when the server has taken the first N gradients, one after another.

    Args:
      arrived: seconds at which gradients arrive, [S, W].
      required: N.
      server_seconds: time of the server for one gradient.

    >>> synchronous_seconds(np.array([[1.0, 3.0, 1.5, 9.0]]), required=3, server_seconds=1.0)  # 1 to 2, 3; 3 to 4
    array([4.])
    """
    first = np.sort(arrived, axis=1)[:, :required]
    left = np.arange(required, 0, -1)  # gradients from the k-th on; the server is busy from some k to the end
    return (first + left * server_seconds).max(axis=1)


def _measure(*, num_workers: int, gradients: int, seed: int) -> dict[str, Any]:
    """Returns images a second and the time of an epoch, by server and mode."""
    steps = -(-gradients // num_workers)
    key = jax.random.key(seed)
    tasks = arrivals.sample(arrivals.make(MODEL), key, num_workers=num_workers, num_steps=steps).astype(np.float64)
    required = num_workers - BACKUPS[num_workers]
    found: dict[str, list[float]] = {speed: [] for speed in SPEEDS}
    for seconds in SERVERS.values():
        each = asynchronous_seconds(tasks, server_seconds=seconds)
        lengths = synchronous_seconds(tasks, required=required, server_seconds=seconds)
        found["asynchronous"].append(BATCH / each)
        found["synchronous"].append(required * BATCH / float(lengths.mean()))
        found["synchronous_median"].append(required * BATCH / float(np.median(lengths)))
    return {"server": list(SERVERS), "required": required, **found}


def frame(rows: Rows) -> Frame:
    """Returns a line for each run and server, with images a second and minutes of an epoch.

    Synchronous images a second follow from the median step, like the published ones, whose error bars are percentiles:
    a few steps of minutes would dominate the mean. ``longer`` is by how many per cent this step is longer than the mean
    cycle of an asynchronous worker.
    """
    df = frames.frame(rows).explode(["server", *SPEEDS], ignore_index=True).astype(dict.fromkeys(SPEEDS, float))
    cycle = df["asynchronous"] * df["required"] / df["num_workers"]
    return df.assign(
        asynchronous_epoch=IMAGES / df["asynchronous"] / 60,
        synchronous_epoch=IMAGES / df["synchronous"] / 60,
        longer=100 * (cycle / df["synchronous_median"] - 1),
    )


def _saved(df: Frame, mode: str) -> float:
    """Returns the share by which epochs get shorter from 106 to 212 workers, with the fitted server."""
    epoch = frames.groups(df[df["server"] == FITTED], "num_workers", f"{mode}_epoch")
    return 1 - epoch[212].mean(skipna=False) / epoch[106].mean(skipna=False)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if set(df["num_workers"]) != set(BACKUPS):
        return untested("The rule needs all numbers of workers.")
    speed = df.loc[(df["server"] == FITTED) & (df["num_workers"] == 200), "synchronous_median"].mean(skipna=False)
    given = f"what it gives 200 synchronous workers, by their median step, over {SYNCHRONOUS:,.0f} images a second,"
    saved = "the share by which asynchronous epochs get shorter from 106 to 212 workers"
    return decide(
        [],
        bound(f"{given} less 1,", speed / SYNCHRONOUS - 1, least=-NEAR, most=NEAR),
        bound(saved, _saved(df, "asynchronous"), most=LITTLE, digits=3),
        built=True,
    )


def _facts(df: Frame) -> Facts:
    if set(df["num_workers"]) != set(BACKUPS):
        return {}
    found: Facts = {}
    longer = frames.groups(df[df["server"] == FITTED], "num_workers", "longer")
    for n in (50, 200):
        words = f"median synchronous step over an asynchronous worker's cycle, {n} workers, longer by"
        found[words] = (frames.text(longer[n], 0, "%"), f"about 10 % [{DIGEST}]")
    words, paper = "shorter epoch with 212 workers than with 106", "none [MEM med: arXiv 1604.00981]"
    found[f"{words}, asynchronous"] = (f"{100 * _saved(df, 'asynchronous'):.1f} %", paper)
    found[f"{words}, synchronous"] = f"{100 * _saved(df, 'synchronous'):.1f} %"
    return found


def _draw(df: Frame, figure: Figure) -> None:
    axes = figure.subplots()
    df = df[df["server"].isin([FITTED, "none"])].sort_values("server")
    is_backed = df["num_workers"].map(BACKUPS) > 0
    ways = {
        "asynchronous": df["asynchronous_epoch"],
        "synchronous with 6 % backups": df["synchronous_epoch"].where(is_backed),
        "synchronous without backups": df["synchronous_epoch"].mask(is_backed),
    }
    lines = df.assign(**ways, limit="limit " + df["server"]).melt(["num_workers", "limit"], [*ways], "way", "minutes")
    looks: Any = {"xlabel": "workers", "xscale": "log", "yscale": "log"}
    y = {"minutes": "mean time of an epoch of ImageNet (min)"}
    figures.values(axes, lines.dropna(), x="num_workers", y=y, by="way", styles="limit", **looks)
    for marker, (mode, speeds) in zip("x+", PUBLISHED.items(), strict=True):
        minutes = [IMAGES / speed / 60 for speed in speeds.values()]
        axes.plot(list(speeds), minutes, f"k{marker}", label=f"TensorFlow's paper, {mode}")
    drawing.ticks(axes.xaxis, (25, 50, 106, 212, 424))
    drawing.ticks(axes.yaxis, (2, 5, 10, 20, 50))
    axes.legend()


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.03},
    runs=repeated(
        lambda scale: [
            {"num_workers": n, "gradients": GRADIENTS[scale]} for n in (BACKUPS if scale != "smoke" else (25, 50))
        ],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    frame=frame,
    data="simulated arrival times",
    model="no model",
    labels=["num_workers", "required", "server"],
    values={
        "images a second, asynchronous": Value("asynchronous", 0),
        "synchronous, by the median step": Value("synchronous_median", 0),
        "mean epoch, asynchronous": Value("asynchronous_epoch", 1, "min"),
        "mean epoch, synchronous": Value("synchronous_epoch", 1, "min"),
    },
    paper=PAPER,
    facts=_facts,
    draw=_draw,
    inches=(6.0, 4.2),
)
