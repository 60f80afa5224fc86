"""The speed-ups of PCL-DNN's abstract from its balance of computation and communication: arithmetic, no training."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import Bound, Rule
from experiments.study.run import Rows, Run, Scale
from planning import balance, layers
from planning.network import Network

MARK = "READ: abstract, arXiv 1602.06709"
OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
NODES = (1, 2, 4, 8, 16, 32, 64, 128)
NEAR = 15.0  # %


class Case(NamedTuple):
    """A network on nodes, and the paper's speed-up."""

    network: str
    batch: int
    nodes: int
    speed_up: float

    @property
    def name(self) -> str:
        """The case in words, which is its key in a row."""
        return f"{NETWORKS[self.network]}, {self.batch} examples, {self.nodes} nodes"


NETWORKS = {"vgg_a": "VGG-A", "overfeat_fast": "OverFeat-FAST", "cd_dnn": "CD-DNN"}
FITTED = Case("vgg_a", 256, 64, 53.0)
JUDGED = (Case("overfeat_fast", 256, 64, 42.0), Case("vgg_a", 512, 128, 90.0))
SHOWN = Case("cd_dnn", 1024, 16, 6.5)


def _speed_up(case: Case, *, balance_of_node: float, overlap: float, nodes: int | None = None) -> float:
    model = layers.read_table(str(Path(__file__).with_name(f"{case.network}.csv")))
    node = balance.Node(balance_of_node, Network(1.0), overlap)
    given: dict[str, Any] = {"batch": case.batch, "node": node, "parallel": "hybrid"}
    return balance.step(model.layers, num_nodes=nodes or case.nodes, **given).speed_up


def fitted_balance(overlap: float) -> float:
    """Returns the FLOP/s over B/s at which VGG-A is as much faster on 64 nodes as in the paper."""

    def miss(log_balance: float) -> float:
        return _speed_up(FITTED, balance_of_node=np.exp(log_balance), overlap=overlap) - FITTED.speed_up

    return float(np.exp(optimize.brentq(miss, np.log(1.0), np.log(1e5))))


def _measure(*, overlap: float) -> dict[str, Any]:
    """Fits the balance of a node, and returns the speed-ups that follow."""
    constants = {"balance_of_node": fitted_balance(overlap), "overlap": overlap}
    curves = {
        case.name: [_speed_up(case, nodes=nodes, **constants) for nodes in NODES] for case in (FITTED, *JUDGED, SHOWN)
    }
    return {"balance": constants["balance_of_node"], "nodes": list(NODES), "speed_ups": curves}


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    overlaps = OVERLAPS[-1:] if scale == "smoke" else OVERLAPS
    return [Run(labels={"overlap": overlap}) for overlap in overlaps]


def _of(row: Any, case: Case) -> float:
    return row["speed_ups"][case.name][row["nodes"].index(case.nodes)]


def _range(values: list[float], *, unit: str = "") -> str:
    ends = dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values)))
    return f"{' to '.join(ends)}{unit}"


def _findings(rows: Rows) -> list[Finding]:
    found = [Finding("FLOP/s over B/s that gives 53 times, by overlap", ours=_range([row["balance"] for row in rows]))]
    for case in (*JUDGED, SHOWN):
        quoted = Quoted(f"{case.speed_up:g}", MARK if case != SHOWN else f"{MARK}; shapes MEM")
        found.append(Finding(f"speed-up, {case.name}", ours=_range([_of(row, case) for row in rows]), paper=quoted))
    found.append(Finding("speed-up on 16 nodes of an Ethernet", ours="another balance", paper=Quoted("14", MARK)))
    return found


def _paper_table(rows: Rows) -> Table:
    cells = {
        case.name: [Cell(Quoted(f"{case.speed_up:g}", MARK), _range([_of(row, case) for row in rows]))]
        for case in (FITTED, *JUDGED, SHOWN)
    }
    return paper_table.table("Case", ["Speed-up"], cells, note="Ours: over all overlaps, each with the balance fitted.")


def _table(rows: Rows) -> Table:
    cases = (FITTED, *JUDGED, SHOWN)
    cells = [[f"{row['overlap']:g}", f"{row['balance']:.0f}", *(f"{_of(row, c):.1f}" for c in cases)] for row in rows]
    return Table(["Overlap", "FLOP/s over B/s", *(case.name for case in cases)], cells, "Modelled speed-ups.")


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    for position, case in enumerate((FITTED, *JUDGED, SHOWN)):
        samples = [Sample.of([row["speed_ups"][case.name][i] for row in rows]) for i in range(len(NODES))]
        drawing.band(axes, NODES, samples, position=position, label=case.name)
        look: dict[str, Any] = {"color": drawing.COLOURS[position], "markersize": 11, "markeredgecolor": "black"}
        axes.plot([case.nodes], [case.speed_up], "*", **look)
    axes.plot(NODES, NODES, ":", label="perfect", **drawing.REFERENCE)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="speed-up (stars: the paper)")
    drawing.ticks(axes, {n: str(n) for n in NODES})
    drawing.plain_numbers(axes.yaxis)
    axes.legend(fontsize=7)


def _misses(case: Case) -> Bound:
    return Bound(
        words=f"the difference of {case.name} from the paper's {case.speed_up:g} times",
        values=lambda rows: [100 * abs(_of(row, case) / case.speed_up - 1) for row in rows],
        most=NEAR,
        unit="%",
        digits=1,
    )


RULE = Rule(
    setting="of each overlap, with the balance that gives 53 times for VGG-A, 256 examples, 64 nodes",
    parts=lambda scale: [_misses(case) for case in JUDGED],
    remark="The network of dense layers and the Ethernet are shown and not judged.",
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=_runs,
    measure=_measure,
    findings=_findings,
    basis=lambda rows: Basis("shapes of layers", "VGG-A and OverFeat-FAST", n=1),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
)
