"""Mean time of an epoch by number of workers, with a parameter server that takes one gradient after another."""

import heapq
from typing import Any

import jax
import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import (
    Experiment,
    Finding,
    Quoted,
    Rows,
    Sample,
    Scale,
    Table,
    Verdict,
    holds,
    repeated,
)
from experiments.study.paper_table import Cell
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


def _judge(rows: Rows) -> Verdict:
    if set(ask.distinct(rows, "num_workers")) != set(BACKUPS):
        return Verdict.untested("The rule needs all numbers of workers.")
    speed, saved = _speed(rows, 200, "synchronous"), _saved(rows, "asynchronous")
    near = abs(speed.mean / SYNCHRONOUS - 1) <= NEAR
    stops = saved < LITTLE
    return Verdict.by_construction(
        near and stops,
        f"A server fitted to {FITTED} of 200 asynchronous workers gives {speed} images a second to 200 synchronous "
        f"ones, published about {SYNCHRONOUS:,.0f} (within {NEAR:.0%}: {holds(near)}); from 106 to 212 asynchronous "
        f"workers an epoch gets {saved:.1%} shorter (less than {LITTLE:.0%}: {holds(stops)}). That it gets no shorter "
        "at all with ever more workers is by construction.",
    )


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


EXPERIMENT = Experiment(
    number=21,
    title="A parameter server that saturates",
    claim="The mean time of an epoch falls with the number of workers until the parameter servers are the limit: "
    "asynchronous epochs get no shorter from 106 to 212 workers.",
    source="arXiv 1604.00981, figure of the mean epoch time with 53, 106 and 212 workers; TensorFlow, OSDI 2016, "
    "section 6.3, figure of images a second by number of workers",
    rule="A check of our model: the arrival model `paper_cluster`, batches of 32, and a server that takes a fixed time "
    f"for each gradient, fitted to one published number, {FITTED} of 200 asynchronous workers. That an epoch cannot "
    "get shorter than the images over this limit is by construction. By construction, too, if the same server gives "
    f"200 synchronous workers {SYNCHRONOUS:,.0f} images a second within {NEAR:.0%}, by their median step, and if "
    f"asynchronous epochs get less than {LITTLE:.0%} shorter from 106 to 212 workers, neither of which is fitted; not "
    "supported if one of the two fails.",
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
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(6.0, 4.2),
    notes=(
        "The server takes gradients one after another in the order in which they arrive, each for the same time, which "
        "stands for network, aggregation and update together; an asynchronous worker goes on when its own gradient has "
        "been taken, a synchronous step ends with the last gradient that it waits for. Gradients that come too late "
        "cost the server nothing here.",
        "The published numbers are a machine-written digest's readings of a figure (READ-2nd), and do not all agree: "
        "1,000 images a second with 50 synchronous workers and 32 images each are steps of 1.6 s, where the same "
        "digest has a median step of about 2.5 s (DERIVED). Another digest gives 2,300 images a second without saying "
        "of which mode, so that the server with this limit is shown as well.",
    ),
)
