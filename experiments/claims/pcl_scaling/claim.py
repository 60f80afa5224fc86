"""The speed-ups of PCL-DNN's abstract from its balance of computation and communication: arithmetic, no training."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize

from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Value, beside
from experiments.study.verdict import Verdict, bound, decide
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
CASES = (FITTED, *JUDGED, SHOWN)


def _speed_up(case: Case, *, balance_of_node: float, overlap: float, nodes: int) -> float:
    model = layers.read_table(str(Path(__file__).with_name(f"{case.network}.csv")))
    node = balance.Node(balance_of_node, Network(1.0), overlap)
    step = balance.step(model.layers, num_nodes=nodes, batch=case.batch, node=node, parallel="hybrid")
    return step.speed_up


def _measure(*, overlap: float) -> dict[str, Any]:
    """Fits the balance of a node, FLOP/s over B/s, to the paper's speed-up of VGG-A; returns those that follow."""

    def miss(log_balance: float) -> float:
        found = _speed_up(FITTED, balance_of_node=np.exp(log_balance), overlap=overlap, nodes=FITTED.nodes)
        return found - FITTED.speed_up

    fitted = float(np.exp(optimize.brentq(miss, np.log(1.0), np.log(1e5))))
    curves = {
        case.name: [_speed_up(case, balance_of_node=fitted, overlap=overlap, nodes=nodes) for nodes in NODES]
        for case in CASES
    }
    return {"balance": fitted, "nodes": list(NODES), "speed_ups": curves}


def frame(rows: Rows) -> Frame:
    """Returns a line for each overlap, with the speed-up of each case on its nodes."""
    df = frames.frame(rows)
    for case in CASES:
        curves = zip(df["nodes"], df["speed_ups"], strict=True)
        df[case.name] = [speed_ups[case.name][nodes.index(case.nodes)] for nodes, speed_ups in curves]
    return df


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    bounds = []
    for case in JUDGED:
        words = f"the difference of {case.name} from the paper's {case.speed_up:g} times"
        off = 100 * (df[case.name] / case.speed_up - 1).abs()
        bounds.append(bound(words, *off, most=NEAR, unit="%", digits=1))
    return decide((), *bounds)


def _facts(df: Frame) -> Facts:
    found: Facts = {"FLOP/s over B/s that gives 53 times, by overlap": _range(df["balance"])}
    for case in CASES:
        shapes = "; shapes MEM" if case == SHOWN else ""
        found[f"speed-up, {case.name}"] = (_range(df[case.name]), f"{case.speed_up:g} [{MARK}{shapes}]")
    return found | {"speed-up on 16 nodes of an Ethernet": ("another balance", f"14 [{MARK}]")}


def _range(values: pd.Series) -> str:
    least, most = f"{values.min():.4g}", f"{values.max():.4g}"
    return least if least == most else f"{least} to {most}"


def _draw(df: Frame, figure: Figure) -> None:
    axes = figure.subplots()
    for position, case in enumerate(CASES):
        curves = np.array([speed_ups[case.name] for speed_ups in df["speed_ups"]])
        figures.band(axes, NODES, curves.T, position=position, label=case.name)
        colour = drawing.COLOURS[position]
        axes.plot(case.nodes, case.speed_up, "*", color=colour, markersize=11, markeredgecolor="black")
    axes.plot(NODES, NODES, ":", label="perfect", **drawing.REFERENCE)
    figures.finish(axes, xscale="log", yscale="log", xlabel="nodes", ylabel="speed-up (stars: the paper)")
    drawing.ticks(axes.xaxis, NODES)


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=lambda scale, rows: [Run(labels={"overlap": share}) for share in OVERLAPS[-1 if scale == "smoke" else 0 :]],
    measure=_measure,
    data="shapes of layers",
    model="VGG-A and OverFeat-FAST",
    frame=frame,
    labels=["overlap"],
    values={
        "FLOP/s over B/s": Value("balance", 0, is_fixed=True),
        **{case.name: Value(case.name, 1, is_fixed=True) for case in CASES},
    },
    facts=_facts,
    draw=_draw,
)
