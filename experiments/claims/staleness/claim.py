"""How many updates gradients of an asynchronous run miss, overall and layer by layer."""

from typing import Any

import jax
import numpy as np

import asynchronous
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
    Rule,
)
from experiments.study.run import Rows, Scale, repeated
from reducers import arrivals

CLUSTER, WORKERS, LAYERS = "paper_cluster", 40, 18
# Gradients of 40 workers; other numbers have them in proportion, so that each worker does as many tasks.
GRADIENTS: dict[Scale, int] = {"smoke": 4_000, "laptop": 100_000}
TOLERANCE = 0.02  # of the number of workers less one
# The paper's table, which counts layers from 0 to 18, where we count from 0 to 17.
STATISTICS = ("min", "mean", "median", "max", "std")
PAPER = {
    17: (4, 14.54, 13.94, 29, 3.83),
    12: (5, 11.35, 11.3, 23, 3.09),
    11: (8, 19.8, 19.59, 34, 3.65),
    0: (24, 38.97, 38.43, 61, 5.43),
}
MARKS = {"min": "MEM lo", "max": "MEM lo"}  # the others are MEM med
PAPER_MEANS = {layer: values[STATISTICS.index("mean")] for layer, values in PAPER.items()}
NAMES = {17: "top layer", 12: "layer 12", 11: "layer 11", 0: "bottom layer"}
CASES = [(CLUSTER, n) for n in (10, 20, WORKERS, 80)] + [("shifted_exponential", WORKERS), ("lognormal", WORKERS)]


def _measure(*, model: str, num_workers: int, num_gradients: int, seed: int) -> dict[str, Any]:
    """Simulates the order of an asynchronous run; statistics omit its start, when all read the same parameters."""
    built, key = arrivals.make(model), jax.random.key(seed)
    durations = asynchronous.from_model(lambda step: built(key, step, num_workers))
    ((events, _),) = asynchronous.order(
        durations, num_workers=num_workers, num_events=num_gradients, events_per_piece=num_gradients
    )

    def described(num_layers: int) -> list[dict[str, float]]:
        times = asynchronous.layer_times([1.0] * num_layers)
        found = []
        for staleness in asynchronous.layer_staleness(events, times, num_workers=num_workers):
            counts = asynchronous.histogram(np.zeros(len(staleness), np.int32), staleness, num_workers=1)
            low, high = np.quantile(staleness, [0.1, 0.9]).tolist()
            found.append({**asynchronous.summary(counts)._asdict(), "low": low, "high": high})
        return found

    return {"whole": described(1)[0], "layers": described(LAYERS)}


def _layer(rows: Rows, layer: int, key: str) -> Sample:
    of_paper = ask.select(rows, model=CLUSTER, num_workers=WORKERS)
    return Sample.of([row["layers"][layer][key] for row in of_paper], digits=2)


def _whole(rows: Rows, **labels: Any) -> Sample:
    return Sample.of([row["whole"]["mean"] for row in ask.select(rows, **labels)], digits=2)


def _findings(rows: Rows) -> list[Finding]:
    paper = Quoted("39, by the documentation of TensorFlow: workers less one", "READ")
    whole = _whole(rows, model=CLUSTER, num_workers=WORKERS)
    return [Finding("mean staleness of whole gradients, 40 workers", paper=paper, paper_number=39, ours=whole)]


def _paper_table(rows: Rows) -> Table:
    cells = {
        NAMES[layer]: [
            Cell(Quoted(f"{value:g}", MARKS.get(key, "MEM med")), _layer(rows, layer, key)._replace(digits=1))
            for key, value in zip(STATISTICS, values, strict=True)
        ]
        for layer, values in PAPER.items()
    }
    note = "Staleness in updates, with 40 workers. The paper's top layer is number 18, ours 17."
    return paper_table.table("Layer", STATISTICS, cells, note=note)


def _table(rows: Rows) -> Table:
    cells = []
    for layer in reversed(range(LAYERS)):
        samples = [_layer(rows, layer, key).mean for key in STATISTICS]
        cells.append([str(layer), *(f"{value:.1f}" for value in samples)])
    return Table(["Layer", *STATISTICS], cells, "40 workers on `paper_cluster`; means over seeds.")


def _draw(rows: Rows, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    layers = range(LAYERS)
    ours = ask.select(rows, model=CLUSTER, num_workers=WORKERS)
    means = [_layer(rows, layer, "mean").mean for layer in layers]
    spans = [[abs(_layer(rows, layer, key).mean - means[layer]) for layer in layers] for key in ("low", "high")]
    label = f"ours, {len(ours)} seeds; bars: 80 % of gradients"
    left.errorbar(layers, means, spans, label=label, markersize=4, capsize=2, **drawing.look(0))
    left.plot(list(PAPER_MEANS), list(PAPER_MEANS.values()), "kx", markersize=7, label="paper (recollected)")
    left.set(xlabel="layer (0 is the bottom)", ylabel="mean staleness (updates)", ylim=(0, 58))
    left.legend(fontsize=8)
    names = {CLUSTER: CLUSTER, "shifted_exponential": "shifted exponential", "lognormal": "lognormal"}
    for position, (model, name) in enumerate(names.items()):
        numbers = ask.distinct(ask.select(rows, model=model), "num_workers")
        samples = [_whole(rows, model=model, num_workers=n) for n in numbers]
        look = drawing.look(position) | {"linestyle": "", "markersize": 9 - 2 * position}
        right.errorbar(numbers, [s.mean for s in samples], [s.std for s in samples], label=name, **look)
    right.plot([1, 80], [0, 79], zorder=0, label="workers less one", **drawing.REFERENCE)
    right.set(xlabel="workers", ylabel="mean staleness (updates)", xlim=(0, 84), ylim=(0, 84))
    right.legend(fontsize=8)


def _off(rows: Rows) -> list[float]:
    return [row["whole"]["mean"] / (row["num_workers"] - 1) - 1 for row in rows]


def _steps_down(rows: Rows) -> list[float]:
    """Returns by how much the mean grows from each layer to the next one below it, in every seed."""
    means = [[layer["mean"] for layer in row["layers"]] for row in ask.select(rows, model=CLUSTER, num_workers=WORKERS)]
    return (-np.diff(np.array(means), axis=1)).ravel().tolist()


RULE = Rule(
    setting="in every run, whatever the number of workers, the model of their times and the seed",
    constructed=True,
    parts=lambda scale: [
        Bound(
            words="mean staleness over the number of workers less one, less 1,",
            values=_off,
            least=-TOLERANCE,
            most=TOLERANCE,
            digits=4,
        ),
        Bound(
            words=f"with {WORKERS} workers on `{CLUSTER}`, what the mean gains from each of {LAYERS} layers to the "
            "next one below it",
            values=_steps_down,
            beyond=0.0,
        ),
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("734753e8da9d",),
    hours={"smoke": 0.01, "laptop": 0.05},
    runs=repeated(
        lambda scale: [
            {"model": model, "num_workers": n, "num_gradients": n * (GRADIENTS[scale] // WORKERS)} for model, n in CASES
        ],
        seeds={"smoke": 2, "laptop": 5},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, data="simulated events", model="models of arrival times"),
    enough=lambda rows: bool(ask.select(rows, model=CLUSTER, num_workers=WORKERS)),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7, 3.2),
)
