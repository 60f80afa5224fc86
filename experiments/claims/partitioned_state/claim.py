"""Memory of the optimizer's state: whole at every worker, as Adasum on updates has it, or partitioned in a node."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from configs import flags
from data.assumed import make_or_assume
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Need,
    Rule,
)
from experiments.study.run import Rows, Run, Scale
from parallel import Layout
from training import dry_run
from training.device_memory import residual_bytes
from training.setup import TrainSetup, make_setup
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping

OWNERS = (1, 4, 8, 16)  # GPUs of a node
COMPILED = {"momentum": "configs/mnist_adasum.py:smoke", "adam": "configs/mnist_adasum_adam.py:smoke"}  # LeNet-5
LARGE = {"adam": "configs/bert_adam.py", "lamb": "configs/bert_lamb.py"}  # BERT-Large
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3}
EXACT, UNEVEN = 0.001, 1.5  # relative error of a byte count; the fullest owner's bytes over an even share
GIB = 2**30
OWNER_ONLY = Quoted("on the owner alone, inside of a node", "READ: the authors' BERT code, Adam")
EVERYWHERE = Quoted("on every GPU", "READ: the authors' BERT code, LAMB")
RECALLED = Quoted("micro-batch 22 to 36, V100 of 16 GB", "MEM-lo")


def contiguous(sizes: Sequence[int], *, num_owners: int) -> list[int]:
    """Returns each tensor's owner: neighbours share one until it holds an even share of the elements.

    >>> contiguous([4, 1, 1, 1, 1], num_owners=2)
    [0, 1, 1, 1, 1]
    """
    share, owner, held, owners = sum(sizes) / num_owners, 0, 0, []
    for size in sizes:
        if held >= share and owner < num_owners - 1:
            owner, held = owner + 1, 0
        owners.append(owner)
        held += size
    return owners


def best_contiguous(sizes: Sequence[int], *, num_owners: int) -> list[int]:
    """Returns each tensor's owner such that the fullest holds as little as neighbours allow.

    >>> best_contiguous([3, 1, 1, 1, 4], num_owners=3)
    [0, 0, 1, 1, 2]
    """
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if max(_filled(sizes, middle)) < num_owners else (middle + 1, high)
    return _filled(sizes, low)


def _filled(sizes: Sequence[int], capacity: int) -> list[int]:
    """Returns each tensor's owner where each owner takes neighbours up to a capacity."""
    owner, held, owners = 0, 0, []
    for size in sizes:
        if held + size > capacity:
            owner, held = owner + 1, 0
        owners.append(owner)
        held += size
    return owners


def by_turns(sizes: Sequence[int], *, num_owners: int) -> list[int]:
    """Returns each tensor's owner: one after another.

    >>> by_turns([4, 1, 1], num_owners=2)
    [0, 1, 0]
    """
    return [i % num_owners for i in range(len(sizes))]


SPLITS = {"contiguous": contiguous, "best contiguous": best_contiguous, "by turns": by_turns}


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _setup(spec: str, *overrides: str) -> TrainSetup:
    return make_setup(flags.load(spec, list(overrides)), open_data=make_or_assume)


def argument_bytes(setup: TrainSetup) -> int:
    """Returns the bytes that the compiled step of all workers on one device takes as arguments, by XLA's account."""
    layout = Layout.of(setup.config.num_workers, num_devices=1)
    step = make_step(setup, layout, map_workers=worker_mapping(setup, layout, steps_per_call=1))
    programs = step.lower(*dry_run.call_shapes(dry_run.step_inputs(setup, layout), num_devices=1))
    return sum(lowered.compile().memory_analysis().argument_size_in_bytes for lowered, _ in programs.values())


def _measure(*, how: str, optimizer: str, seed: int) -> dict[str, Any]:
    """Measures what one worker more takes on a device, or computes what each owner of BERT-Large would hold."""
    if how == "compiled":
        setups = [_setup(COMPILED[optimizer], f"--config.num_workers={n}", f"--config.seed={seed}") for n in (1, 2)]
        one, two = map(argument_bytes, setups)
        worker = setups[0].worker_shapes.worker.opt_state
        return {"parameters": _bytes(setups[0].worker_shapes.params), "state": _bytes(worker), "measured": two - one}
    setup = _setup(LARGE[optimizer], "--config.model.remat=none", f"--config.seed={seed}")
    params, state = setup.worker_shapes.params, setup.worker_shapes.worker.opt_state
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    examples = setup.config.batch_size_per_worker // setup.micro_batches["count"]
    found: dict[str, Any] = {"parameters": _bytes(params), "state": _bytes(state), "largest": max(sizes) / sum(sizes)}
    found |= {"activations": residual_bytes(setup) / examples, "owners": list(OWNERS)}
    for name, split in SPLITS.items():
        found[name] = [
            float(np.bincount(split(sizes, num_owners=n), sizes).max() / sum(sizes) * _bytes(state)) for n in OWNERS
        ]
    return found


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    cases = [("compiled", optimizer) for optimizer in COMPILED] + [("computed", optimizer) for optimizer in LARGE]
    return [
        Run(labels={"how": how, "optimizer": optimizer, "seed": seed})
        for how, optimizer in cases
        if scale != "smoke" or (how, optimizer) == ("compiled", "momentum")
        for seed in range(SEEDS[scale])
    ]


def _compiled(rows: Rows) -> dict[str, Rows]:
    found = {optimizer: ask.select(rows, how="compiled", optimizer=optimizer) for optimizer in COMPILED}
    return {optimizer: same for optimizer, same in found.items() if same}


def _large(rows: Rows) -> dict[str, Rows]:
    found = {optimizer: ask.select(rows, how="computed", optimizer=optimizer) for optimizer in LARGE}
    return {optimizer: same for optimizer, same in found.items() if same}


def _sample(rows: Rows, key: str, *, unit: float = GIB, at: int | None = None) -> Sample:
    values = [(row[key] if at is None else row[key][at]) / unit for row in rows]
    return Sample.of(values, digits=2, unit="GiB" if unit == GIB else "MB")


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for optimizer, same in _compiled(rows).items():
        name = f"LeNet-5 on digits, {optimizer}"
        measured = "what one worker more takes on a device, compiled step"
        found += [
            Finding(f"{measured}, {name} (measured)", ours=_sample(same, "measured", unit=1e6)),
            Finding(f"optimizer state of a worker, {name} (array bytes)", ours=_sample(same, "state", unit=1e6)),
        ]
    for optimizer, same in _large(rows).items():
        name = f"BERT-Large, {optimizer}"
        paper = EVERYWHERE if optimizer == "lamb" else None
        whole = "optimizer state of a worker, whole, which ours holds"
        found.append(Finding(f"{whole}, {name} (array bytes)", ours=_sample(same, "state"), paper=paper))
        for i, owners in enumerate(OWNERS[1:], start=1):
            quantity = f"fullest of {owners} owners, contiguous split, {name} (computed)"
            paper = OWNER_ONLY if optimizer == "adam" else None
            found.append(Finding(quantity, ours=_sample(same, "contiguous", at=i), paper=paper))
        freed = [(row["state"] - row["contiguous"][-1]) / row["activations"] for row in same]
        quantity = (
            f"sequences of 128 tokens whose activations fit into what {OWNERS[-1]} owners free, {name} (computed)"
        )
        recalled = RECALLED if optimizer == "adam" else None
        found.append(Finding(quantity, ours=Sample.of(freed, digits=1), paper=recalled))
    return found


def _paper_table(rows: Rows) -> Table:
    """Returns where the authors' code keeps the state, and the bytes that this is for BERT-Large."""
    cells = {}
    for optimizer, same in _large(rows).items():
        paper = OWNER_ONLY if optimizer == "adam" else EVERYWHERE
        owned = [_sample(same, "contiguous", at=i) for i in range(1, len(OWNERS))]
        cells[optimizer] = [Cell(paper, _sample(same, "state")), *(Cell(None, each) for each in owned)]
    columns = ["state on each GPU (ours: whole, at each worker)"]
    columns += [f"state of the fullest of {owners} owners (ours: computed)" for owners in OWNERS[1:]]
    note = f"The paper's table is recalled only: {RECALLED.text}, 154.7 to 168.5 sequences a second, update 1.82 to "
    return paper_table.table("BERT-Large", columns, cells, note=f"{note}0.97 s [MEM-lo]; no value of it is a target.")


def _table(rows: Rows) -> Table:
    cells = []
    for optimizer, same in _large(rows).items():
        for i, owners in enumerate(OWNERS):
            splits = [str(_sample(same, name, at=i)) for name in SPLITS]
            cells.append([optimizer, str(owners), *splits, f"{same[0]['state'] / owners / GIB:.2f} GiB"])
    header = ["BERT-Large", "Owners", *(f"Fullest owner, {name}" for name in SPLITS), "Even share"]
    return Table(header, cells, "Computed from the sizes of all tensors.")


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    for optimizer, same in list(_large(rows).items())[:1]:  # LAMB's state is as large as Adam's
        for position, name in enumerate(SPLITS):
            samples = [_sample(same, name, at=i) for i in range(len(OWNERS))]
            drawing.band(axes, list(OWNERS), samples, position=position, label=f"fullest owner, {name}")
        even = [same[0]["state"] / owners / GIB for owners in OWNERS]
        axes.plot(list(OWNERS), even, label="even share", linestyle="--", **drawing.REFERENCE)
        axes.set_title(f"BERT-Large, {optimizer}", fontsize=9)
        axes.legend(fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="owners", ylabel="optimizer state on a device (GiB)")
    drawing.ticks(axes, {owners: str(owners) for owners in OWNERS})
    drawing.plain_numbers(axes.yaxis)


def _off(rows: Rows) -> list[float]:
    return [row["measured"] / row["state"] - 1 for same in _compiled(rows).values() for row in same]


def _uneven(rows: Rows) -> list[float]:
    return [
        row["contiguous"][i] * owners / row["state"]
        for same in _large(rows).values()
        for row in same
        for i, owners in enumerate(OWNERS)
    ]


def _lacks(rows: Rows) -> str:
    there = set(_compiled(rows)) == set(COMPILED) and set(_large(rows)) == set(LARGE)
    return "" if there else "The rule needs the compiled steps and the large models."


RULE = Rule(
    setting="of byte counts, with owners of whole tensors, neighbours together",
    constructed=True,
    needs=[Need("the compiled steps or the large models are missing", _lacks)],
    parts=lambda scale: [
        Bound(
            words="the bytes of arguments that one worker more adds to the compiled step, over its optimizer state, "
            "less 1,",
            values=_off,
            least=-EXACT,
            most=EXACT,
            digits=5,
        ),
        Bound(
            words=f"the fullest owner's state of BERT-Large over an even share, with {OWNERS[1]} to {OWNERS[-1]} "
            "owners,",
            values=_uneven,
            most=UNEVEN,
        ),
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("7678eadc851a",),
    hours={"smoke": 0.01, "laptop": 0.05},
    runs=_runs,
    measure=_measure,
    findings=_findings,
    basis=lambda rows: Basis("shapes of arrays", "LeNet-5, BERT-Large", n=1),  # nothing is drawn
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
)
