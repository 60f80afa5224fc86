"""Memory of the optimizer's state: whole at every worker, as Adasum on updates has it, or in parts within a node."""

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from compilers.estimate import Estimate
from configs import flags
from data.assumed import make_or_assume
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Value, beside
from experiments.study.verdict import Verdict, bound, decide, untested
from parallel import Layout
from reducers import targets
from reducers.leaves import num_bytes
from training import dry_run
from training.setup import TrainSetup, make_setup
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping

OWNERS = (1, 4, 8, 16)  # GPUs of a node
TARGET = "h100:2x{}"  # two nodes of so many GPUs, each a worker
COMPILED = {"momentum": "configs/mnist_adasum.py:smoke", "adam": "configs/mnist_adasum_adam.py:smoke"}  # LeNet-5
LARGE = {"adam": "configs/bert_adam.py", "lamb": "configs/bert_lamb.py"}  # BERT-Large
CASES: list[dict[str, Any]] = [
    *({"how": "compiled", "optimizer": optimizer} for optimizer in COMPILED),
    *({"how": "computed", "optimizer": optimizer} for optimizer in LARGE),
    *({"how": "parts", "optimizer": optimizer, "owners": owners} for optimizer in LARGE for owners in OWNERS[1:]),
    *({"how": "room", "optimizer": "adam", "partition": name} for name in ("none", "state")),
]
EXACT = 0.001  # relative error of a byte count
GIB = 2**30
MEMORY = 16 * GIB  # of the paper's V100
PARTITIONS = {"whole": "none", "in parts": "state"}  # config.partition
FEW, MANY = 4, 512  # sequences a device: of the steps that are compared; more than fit
OWNER_ONLY = "on the owner alone, inside of a node [READ: the authors' BERT code, Adam]"
EVERYWHERE = "on every GPU [READ: the authors' BERT code, LAMB]"
RECALLED = "22 whole, 36 in parts, V100 of 16 GB [MEM-lo]"
PAPER = {**{("adam", owners): OWNER_ONLY for owners in OWNERS[1:]}, ("lamb", 1): EVERYWHERE}


def neighbours(sizes: Sequence[int], *, is_full: Callable[[Sequence[int], int], bool]) -> list[int]:
    """Returns how much each owner holds if tensors go to one owner until it is full, then to the next.

    Args:
      sizes: elements of each tensor.
      is_full: (what the owners hold so far, size of the next tensor) -> whether that tensor goes to the next owner.
    """
    held = [0]
    for size in sizes:
        if is_full(held, size):
            held.append(0)
        held[-1] += size
    return held


def contiguous(sizes: Sequence[int], num_owners: int) -> int:
    """Returns how much the fullest owner holds if each takes neighbours until it has an even share of the elements.

    >>> contiguous([4, 1, 1, 1, 1], 2)
    4
    """
    share = sum(sizes) / num_owners
    return max(neighbours(sizes, is_full=lambda held, size: held[-1] >= share and len(held) < num_owners))


def best_contiguous(sizes: Sequence[int], num_owners: int) -> int:
    """Returns how much the fullest owner holds under the best split among neighbours.

    >>> best_contiguous([3, 1, 1, 1, 4], 3)
    4
    """

    def is_enough(most: int) -> bool:
        return len(neighbours(sizes, is_full=lambda held, size: held[-1] + size > most)) <= num_owners

    return bisect.bisect_left(range(sum(sizes)), True, lo=max(sizes), key=is_enough)


def by_turns(sizes: Sequence[int], num_owners: int) -> int:
    """Returns how much the fullest owner holds if owners take tensors in turns.

    >>> by_turns([4, 1, 1], 2)
    5
    """
    return max(sum(sizes[owner::num_owners]) for owner in range(num_owners))


SPLITS = {"contiguous": contiguous, "best contiguous": best_contiguous, "by turns": by_turns}


def _setup(spec: str, *overrides: str) -> TrainSetup:
    return make_setup(flags.load(spec, list(overrides)), open_data=make_or_assume)


def argument_bytes(setup: TrainSetup) -> int:
    """Returns the bytes that the compiled step of all workers on one device takes as arguments, by XLA's account."""
    layout = Layout.of(setup.config.num_workers, num_devices=1)
    step = make_step(setup, layout, map_workers=worker_mapping(setup, layout, steps_per_call=1))
    programs = step.lower(*dry_run.call_shapes(dry_run.step_inputs(setup, layout), num_devices=1))
    return sum(lowered.compile().memory_analysis().argument_size_in_bytes for lowered, _ in programs.values())


def _measure(*, how: str, optimizer: str, owners: int = OWNERS[-1], partition: str = "none") -> dict[str, Any]:
    """Measures what one worker more takes on a device, or what a device takes whose state is whole, and in parts.

    Args:
      how: "compiled", LeNet-5's step with one worker and with two; "computed", what owners of whole tensors of
        BERT-Large would hold; "parts", BERT-Large's step, by the compiler of GPUs; "room", how many sequences fit.
      optimizer: its name.
      owners: GPUs of a node, of "parts" and "room".
      partition: what is in parts, of "room".
    """
    if how == "compiled":
        setups = [_setup(COMPILED[optimizer], f"--config.num_workers={n}") for n in (1, 2)]
        one, two = map(argument_bytes, setups)
        worker = setups[0].worker_shapes.worker.opt_state
        return {
            "parameters": num_bytes(setups[0].worker_shapes.params),
            "state": num_bytes(worker),
            "measured": two - one,
        }
    if how == "room":
        needs = functools.cache(lambda count: _needs(optimizer, owners, partition, count).total_bytes)
        fits = most_that_fit(needs, MEMORY, least=FEW, most=MANY)
        return {"fits": fits, "memory": [needs(fits), needs(fits + 1)]}
    setup = _setup(LARGE[optimizer], "--config.model.remat=none")
    params = setup.worker_shapes.params
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    total, state = sum(sizes), num_bytes(setup.worker_shapes.worker.opt_state)
    found: dict[str, Any] = {"parameters": num_bytes(params), "state": state}
    if how == "parts":
        needs_of = {name: _needs(optimizer, owners, what, FEW) for name, what in PARTITIONS.items()}
        return found | {name: needs.arguments for name, needs in needs_of.items()}
    return found | {
        "largest": max(sizes) / total,
        "owners": list(OWNERS),
        **{name: [split(sizes, n) / total * state for n in OWNERS] for name, split in SPLITS.items()},
    }


def most_that_fit(needs: Callable[[int], float], room: float, *, least: int, most: int) -> int:
    """Returns a number n whose need fits into a room where that of n + 1 does not.

    It looks where a line through the nearest numbers on both sides meets the room.

    Args:
      needs: what a number needs; it may be called twice with one.
      room: what there is.
      least: a number that fits.
      most: a larger one that does not.

    >>> most_that_fit(lambda n: 3 * n + 0.1 * n * n, 100.0, least=1, most=512)
    20
    """
    while most - least > 1:
        below, above = needs(least), needs(most)
        if not below <= room < above:
            raise ValueError(
                f"{least} and {most} need {below:.3g} and {above:.3g}, must lie on both sides of {room:.3g}"
            )
        guess = min(max(least + int((room - below) / (above - below) * (most - least)), least + 1), most - 1)
        least, most = (guess, most) if needs(guess) <= room else (least, guess)
    return least


def _needs(optimizer: str, owners: int, partition: str, sequences: int) -> Estimate:
    """Returns what a GPU needs of the step of two nodes, with so many sequences a GPU."""
    keys = {
        "num_workers": 2,
        "devices_per_worker": owners,
        "partition": partition,
        "mapping": "shard_map",
        "batch_size_per_worker": owners * sequences,
        "accumulation.count": 1,
        "model.remat": "none",
        "model.scan_blocks": "on",  # compiles one block instead of 24
    }
    setup = _setup(LARGE[optimizer], *(f"--config.{key}={value}" for key, value in keys.items()))
    target = targets.find(TARGET.format(owners))
    with target.compiling() as devices:
        layout = Layout.of(2, num_devices=target.num_devices, devices=devices, devices_per_worker=owners)
        programs = dry_run.compile_programs(setup, layout, target, say=lambda line: None)
    (step,) = programs.values()
    return step.needs


def frame(rows: Rows) -> Frame:
    """Returns a line for each compiled run, which has no owners, and for each optimizer and number of owners.

    The latter have what owners of whole tensors would hold beside what a device holds of a state in even parts.
    """
    df = frames.frame(rows, "measured", "owners", "partition", "fits", *SPLITS, *PARTITIONS)
    df["owners"] = df["owners"].where(df["how"] != "parts", df["owners"].map(lambda count: [count]))
    found = df[df["how"] != "parts"].drop(columns=[*PARTITIONS]).explode(["owners", *SPLITS])
    parts = df[df["how"] == "parts"].explode("owners")[["optimizer", "owners", *PARTITIONS]]
    keys = {"owners": float}
    df = found.astype(keys).merge(parts.astype(keys), how="left", on=["optimizer", "owners"])
    state, owners, fullest = df["state"], df["owners"], df["contiguous"].astype(float)
    freed = df["whole"].astype(float) - df["in parts"].astype(float)
    return df.assign(
        off=df["measured"] / state - 1,
        off_parts=freed / (state * (1 - 1 / owners)) - 1,
        held=(state - freed.where(owners > 1, 0.0)) / GIB,
        uneven=fullest * owners / state,
        even=state / owners / GIB,
        **{split: df[split].astype(float) / GIB for split in SPLITS},
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    compiled, large = df[df["how"] == "compiled"], df[(df["how"] == "computed") & (df["owners"] > 1)]
    is_there = [set(compiled["optimizer"]) == set(COMPILED), set(large["optimizer"]) == set(LARGE)]
    if not all(is_there) or large["off_parts"].isna().any():
        return untested("The rule needs the compiled steps of both models.")
    more = "the bytes of arguments that one worker more adds to the compiled step, over its optimizer state, less 1,"
    less = (
        f"the bytes of arguments that a device of {OWNERS[1]} to {OWNERS[-1]} has less in the compiled step of "
        "BERT-Large with the state in parts, over the parts that it does not hold, less 1,"
    )
    return decide(
        (),
        bound(more, *compiled["off"], least=-EXACT, most=EXACT, digits=5),
        bound(less, *large["off_parts"], least=-EXACT, most=EXACT, digits=5),
        built=True,
    )


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for optimizer, same in df[df["how"] == "compiled"].groupby("optimizer", sort=False):
        measured, state = (frames.text(same[key] / 1e6, 2, "MB", is_fixed=True) for key in ("measured", "state"))
        case = f"LeNet-5 on digits, {optimizer}"
        found[f"one worker more takes on a device, compiled step, {case} (measured)"] = measured
        found[f"optimizer state of a worker, {case} (array bytes)"] = state
    large = df[df["how"] == "computed"]
    found["fullest owner of whole tensors over an even share, BERT-Large (computed)"] = ", ".join(
        f"{uneven:.2f} of {owners:.0f}" for owners, uneven in large.groupby("owners")["uneven"].max().items()
    )
    room = df[df["how"] == "room"].set_index("partition")["fits"]
    if len(room) == len(PARTITIONS):
        ours = ", ".join(f"{room[what]:.0f} {name}" for name, what in PARTITIONS.items())
        title = (
            f"sequences of 128 tokens a GPU that fit into 16 GiB, nodes of {OWNERS[-1]}, BERT-Large, adam (compiled)"
        )
        found[title] = ours, RECALLED
    return found


def _draw(df: Frame, figure: Figure) -> None:
    adam = df[(df["how"] == "computed") & (df["optimizer"] == "adam")]  # LAMB's state is as large
    names = {**{split: f"fullest owner, {split}" for split in SPLITS}, "held": "even parts, compiled"}
    lines = adam.rename(columns=names).melt(["owners"], [*names.values()], "split", "held")
    y, title = {"held": "optimizer state on a device (GiB)"}, "BERT-Large, adam"
    figures.values(figure, lines, x="owners", y=y, by="split", title=title, xscale="log", yscale="log")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.5},
    runs=lambda scale, rows: [Run(labels=case) for case in CASES[: 1 if scale == "smoke" else None]],
    measure=_measure,
    data="shapes of arrays",
    model="LeNet-5, BERT-Large",
    frame=frame,
    labels=["optimizer", "owners"],
    values={
        **{f"fullest owner of BERT-Large, {split}": Value(split, 2, "GiB", is_fixed=True) for split in SPLITS},
        "even parts, compiled": Value("held", 2, "GiB", is_fixed=True),
    },
    paper=PAPER,
    facts=_facts,
    draw=_draw,
)
