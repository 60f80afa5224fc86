"""Mean time of an epoch by number of workers, with a parameter server that takes one gradient after another."""

import heapq
from typing import Any

import jax
import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Need,
    Rule,
)
from experiments.study.run import Rows, Scale, repeated
from reducers import arrivals

MODEL = "paper_cluster"
BATCH, IMAGES = 32, 1_281_167
MODES = ("asynchronous", "synchronous")
BACKUPS = {25: 0, 50: 0, 53: 3, 106: 6, 200: 0, 212: 12, 424: 24}  # of so many workers, when synchronous
GRADIENTS: dict[Scale, int] = {"smoke": 3_000, "laptop": 60_000}
SERVERS = {"none": 0.0, "2,850 images/s": BATCH / 2850, "2,300 images/s": BATCH / 2300}  # seconds of a gradient
FITTED = "2,850 images/s"  # the server that the rule is about
SYNCHRONOUS = 2300.0  # images a second with 200 workers
NEAR, LITTLE = 0.15, 0.1  # of the synchronous rate; of the epoch's time
DIGEST = "READ-2nd: TensorFlow, OSDI 2016, section 6.3"
PUBLISHED = {  # workers and mode -> images a second
    (200, "asynchronous"): 2850.0,
    (200, "synchronous"): SYNCHRONOUS,
    (50, "asynchronous"): 1100.0,
    (50, "synchronous"): 1000.0,
    (25, "asynchronous"): 400.0,
    (25, "synchronous"): 350.0,
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
    num_tasks = len(tasks)
    waiting = [(seconds, worker, 0) for worker, seconds in enumerate(tasks[0].tolist())]
    heapq.heapify(waiting)
    free, taken = 0.0, []
    while True:
        arrived, worker, task = heapq.heappop(waiting)
        free = max(arrived, free) + server_seconds
        taken.append(free)
        if task + 1 == num_tasks:  # the table of this worker is at its end
            break
        heapq.heappush(waiting, (free + float(tasks[task + 1, worker]), worker, task + 1))
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
    built = arrivals.make(MODEL)
    tasks = arrivals.sample(built, jax.random.key(seed), num_workers=num_workers, num_steps=steps).astype(np.float64)
    required = num_workers - BACKUPS[num_workers]
    found: dict[str, Any] = {"server": list(SERVERS), "required": required}
    for seconds in SERVERS.values():
        each = asynchronous_seconds(tasks, server_seconds=seconds)
        lengths = synchronous_seconds(tasks, required=required, server_seconds=seconds)
        speeds = {
            "asynchronous": BATCH / each,
            "synchronous": required * BATCH / float(lengths.mean()),
            "synchronous_median": required * BATCH / float(np.median(lengths)),
        }
        for key, images_per_second in speeds.items():
            found.setdefault(key, []).append(images_per_second)
    return found


def _speed(rows: Rows, num_workers: int, mode: str, *, server: str = FITTED) -> Sample:
    """Returns images a second, over seeds; of synchronous steps by the median, as the published ones have error bars.

    Those are of percentiles, and a few steps that take minutes would rule the mean.
    """
    at, key = list(SERVERS).index(server), "synchronous_median" if mode == "synchronous" else mode
    return Sample.of([row[key][at] for row in ask.select(rows, num_workers=num_workers)], digits=0)


def _epoch(rows: Rows, num_workers: int, mode: str, *, server: str = FITTED) -> Sample:
    """Returns the time of an epoch in minutes, over seeds."""
    at = list(SERVERS).index(server)
    found = [IMAGES / row[mode][at] / 60 for row in ask.select(rows, num_workers=num_workers)]
    return Sample.of(found, digits=1, unit="min")


def _longer(rows: Rows, num_workers: int) -> Sample:
    """Returns how many per cent the median synchronous step is longer than an asynchronous worker's mean cycle."""
    at = list(SERVERS).index(FITTED)
    same = ask.select(rows, num_workers=num_workers)
    found = [
        100 * (row["asynchronous"][at] * row["required"] / num_workers / row["synchronous_median"][at] - 1)
        for row in same
    ]
    return Sample.of(found, digits=0, unit="%")


def _findings(rows: Rows) -> list[Finding]:
    there = ask.distinct(rows, "num_workers")
    found = []
    for (workers, mode), speed in PUBLISHED.items():
        if workers in there:
            fitted = " (fitted)" if (workers, mode) == (200, "asynchronous") else ""
            quantity = f"images a second, {workers} workers, {mode}{fitted}"
            paper = Quoted(f"about {speed:,.0f}", DIGEST)
            found.append(Finding(quantity, ours=_speed(rows, workers, mode), paper=paper, paper_number=speed))
    for workers in (50, 200):
        if workers in there:
            quantity = f"median synchronous step over an asynchronous worker's cycle, {workers} workers, longer by"
            found.append(Finding(quantity, ours=_longer(rows, workers), paper=Quoted("about 10 %", DIGEST)))
    if {106, 212} <= set(there):
        none = Quoted("asynchronous: none", "MEM med: arXiv 1604.00981")
        for mode, quoted in zip(MODES, (none, None), strict=True):
            quantity = f"shorter epoch with 212 workers than with 106, {mode}"
            found.append(Finding(quantity, ours=f"{100 * _saved(rows, mode):.1f} %", paper=quoted))
    return found


def _saved(rows: Rows, mode: str) -> float:
    """Returns by how much 212 workers make an epoch shorter than 106 do, as a share."""
    return 1 - _epoch(rows, 212, mode).mean / _epoch(rows, 106, mode).mean


def _paper_table(rows: Rows) -> Table:
    """Returns the mean time of an epoch by number of workers, the paper's figure as far as it is known."""
    known = {(212, "asynchronous"): Quoted("no shorter than with 106", "MEM med")}
    cells = {}
    for workers in ask.distinct(rows, "num_workers"):
        ours = {mode: _epoch(rows, workers, mode) for mode in MODES}
        split = f"{workers} ({workers - BACKUPS[workers]} + {BACKUPS[workers]})"
        cells[split] = [Cell(known.get((workers, mode)), ours[mode]) for mode in MODES]
    note = f"Ours: a server with the limit {FITTED}."
    return paper_table.table("Workers", [f"mean epoch time, {mode}" for mode in MODES], cells, note=note)


def _table(rows: Rows) -> Table:
    cells = [
        [str(workers), server, *(str(_speed(rows, workers, mode, server=server)) for mode in MODES)]
        for workers in ask.distinct(rows, "num_workers")
        for server in SERVERS
    ]
    return Table(
        ["Workers", "Server's limit", "Images a second, asynchronous", "synchronous, by the median step"], cells
    )


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    there = ask.distinct(rows, "num_workers")
    ways = [
        ("asynchronous", there, "asynchronous"),
        ("synchronous", [n for n in there if BACKUPS[n]], "synchronous with 6 % backups"),
        ("synchronous", [n for n in there if not BACKUPS[n]], "synchronous without backups"),
    ]
    for position, (mode, workers, label) in enumerate(ways):
        for style, server in enumerate(("none", FITTED)):
            samples = [_epoch(rows, n, mode, server=server) for n in workers]
            limit = "no limit" if server == "none" else f"limit {server}"
            look: Any = {"linestyle": drawing.LINE_STYLES[1 - style]}
            drawing.band(axes, workers, samples, position=position, label=f"{label}, {limit}", **look)
    for place, mode in enumerate(MODES):
        points = {n: IMAGES / speed / 60 for (n, of), speed in PUBLISHED.items() if of == mode}
        marks: Any = {"marker": "x+"[place], "linestyle": "", "color": "black"}
        axes.plot(list(points), list(points.values()), label=f"TensorFlow's paper, {mode}", **marks)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="mean time of an epoch of ImageNet (min)")
    drawing.ticks(axes, {n: str(n) for n in (25, 50, 106, 212, 424)})
    axes.set_yticks((2, 5, 10, 20, 50))
    drawing.plain_numbers(axes.yaxis, minor="bare")
    axes.legend(fontsize=7)


RULE = Rule(
    setting=f"a server that takes a fixed time for each gradient is fitted to one published number, {FITTED} of 200 "
    f"asynchronous workers, with the arrival model `{MODEL}` and batches of {BATCH}; that an epoch cannot get shorter "
    "than the images over this limit is so by construction, too",
    constructed=True,
    needs=[
        Need(
            "a number of workers is missing",
            lambda rows: (
                ""
                if set(ask.distinct(rows, "num_workers")) == set(BACKUPS)
                else "The rule needs all numbers of workers."
            ),
        )
    ],
    parts=lambda scale: [
        Bound(
            words=f"what it gives 200 synchronous workers, by their median step, over {SYNCHRONOUS:,.0f} images a "
            "second, less 1,",
            values=lambda rows: [_speed(rows, 200, "synchronous").mean / SYNCHRONOUS - 1],
            least=-NEAR,
            most=NEAR,
        ),
        Bound(
            words="the share by which asynchronous epochs get shorter from 106 to 212 workers",
            values=lambda rows: [_saved(rows, "asynchronous")],
            most=LITTLE,
            digits=3,
        ),
    ],
    remark="Neither of the two is fitted.",
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("2bafc8d7cb3c",),
    hours={"smoke": 0.02, "laptop": 0.03},
    runs=repeated(
        lambda scale: [
            {"num_workers": n, "gradients": GRADIENTS[scale]} for n in (BACKUPS if scale != "smoke" else (25, 50))
        ],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, data="simulated arrival times", model="no model"),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(6.0, 4.2),
)
