"""Memory of the optimizer's state: whole at every worker, as Adasum on updates has it, or partitioned in a node."""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from configs import flags
from data.assumed import make_or_assume
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Scale, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide, untested
from parallel import Layout
from reducers.leaves import num_bytes
from training import dry_run
from training.device_memory import residual_bytes
from training.setup import TrainSetup, make_setup
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping

OWNERS = (1, 4, 8, 16)  # GPUs of a node
COMPILED = {"momentum": "configs/mnist_adasum.py:smoke", "adam": "configs/mnist_adasum_adam.py:smoke"}  # LeNet-5
LARGE = {"adam": "configs/bert_adam.py", "lamb": "configs/bert_lamb.py"}  # BERT-Large
CASES = [
    *({"how": "compiled", "optimizer": optimizer} for optimizer in COMPILED),
    *({"how": "computed", "optimizer": optimizer} for optimizer in LARGE),
]
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3}
EXACT, UNEVEN = 0.001, 1.5  # relative error of a byte count; the fullest owner's bytes over an even share
GIB = 2**30
OWNER_ONLY = "on the owner alone, inside of a node [READ: the authors' BERT code, Adam]"
EVERYWHERE = "on every GPU [READ: the authors' BERT code, LAMB]"
RECALLED = "micro-batch 22 to 36, V100 of 16 GB [MEM-lo]"
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


def _measure(*, how: str, optimizer: str, seed: int) -> dict[str, Any]:
    """Measures the memory of one more worker on a device, or computes that of each owner of BERT-Large's state."""
    if how == "compiled":
        setups = [_setup(COMPILED[optimizer], f"--config.num_workers={n}", f"--config.seed={seed}") for n in (1, 2)]
        one, two = map(argument_bytes, setups)
        worker = setups[0].worker_shapes.worker.opt_state
        return {
            "parameters": num_bytes(setups[0].worker_shapes.params),
            "state": num_bytes(worker),
            "measured": two - one,
        }
    setup = _setup(LARGE[optimizer], "--config.model.remat=none", f"--config.seed={seed}")
    params = setup.worker_shapes.params
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    total, state = sum(sizes), num_bytes(setup.worker_shapes.worker.opt_state)
    examples = setup.config.batch_size_per_worker // setup.micro_batches["count"]
    return {
        "parameters": num_bytes(params),
        "state": state,
        "largest": max(sizes) / total,
        "activations": residual_bytes(setup) / examples,
        "owners": list(OWNERS),
        **{name: [split(sizes, n) / total * state for n in OWNERS] for name, split in SPLITS.items()},
    }


def frame(rows: Rows) -> Frame:
    """Returns a line for each compiled run, which has no owners, and for each computed run and number of owners."""
    df = frames.frame(rows, "measured", "activations", "owners", *SPLITS)
    df = df.explode(["owners", *SPLITS], ignore_index=True)
    state, owners, fullest = df["state"], df["owners"].astype(float), df["contiguous"].astype(float)
    return df.assign(
        off=df["measured"] / state - 1,
        uneven=fullest * owners / state,
        freed=(state - fullest) / df["activations"],
        even=state / owners / GIB,
        **{split: df[split].astype(float) / GIB for split in SPLITS},
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    compiled, large = (df[df["how"] == how] for how in ("compiled", "computed"))
    if set(compiled["optimizer"]) != set(COMPILED) or set(large["optimizer"]) != set(LARGE):
        return untested("The rule needs the compiled steps and the large models.")
    more = "the bytes of arguments that one worker more adds to the compiled step, over its optimizer state, less 1,"
    fullest = f"the fullest owner's state of BERT-Large over an even share, with {OWNERS[1]} to {OWNERS[-1]} owners,"
    return decide(
        (),
        bound(more, *compiled["off"], least=-EXACT, most=EXACT, digits=5),
        bound(fullest, *large["uneven"], most=UNEVEN),
        built=True,
    )


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for optimizer, same in df[df["how"] == "compiled"].groupby("optimizer", sort=False):
        measured, state = (frames.text(same[key] / 1e6, 2, "MB") for key in ("measured", "state"))
        case = f"LeNet-5 on digits, {optimizer}"
        found[f"one worker more takes on a device, compiled step, {case} (measured)"] = measured
        found[f"optimizer state of a worker, {case} (array bytes)"] = state
    for optimizer, same in df[df["owners"] == OWNERS[-1]].groupby("optimizer", sort=False):
        room = f"sequences of 128 tokens whose activations fit into what {OWNERS[-1]} owners free"
        freed = frames.text(same["freed"], 1)
        found[f"{room}, BERT-Large, {optimizer} (computed)"] = (freed, RECALLED) if optimizer == "adam" else freed
    return found


def _draw(df: Frame, figure: Figure) -> None:
    adam = df[(df["how"] == "computed") & (df["optimizer"] == "adam")]  # LAMB's state is as large
    names = {**{split: f"fullest owner, {split}" for split in SPLITS}, "even": "even share"}
    lines = adam.rename(columns=names).melt(["owners"], [*names.values()], "split", "held")
    y, title = {"held": "optimizer state on a device (GiB)"}, "BERT-Large, adam"
    figures.values(figure, lines, x="owners", y=y, by="split", ticks="", title=title, xscale="log", yscale="log")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.05},
    runs=repeated(lambda scale: CASES[: 1 if scale == "smoke" else None], seeds=SEEDS),
    measure=_measure,
    data="shapes of arrays",
    model="LeNet-5, BERT-Large",
    frame=frame,
    rests_on=lambda df: df[df["seed"] == 0],  # nothing is drawn
    labels=["optimizer", "owners"],
    values={
        **{f"fullest owner of BERT-Large, {split}": Value(split, 2, "GiB", is_fixed=True) for split in SPLITS},
        "even share": Value("even", 2, "GiB", is_fixed=True),
    },
    paper=PAPER,
    facts=_facts,
    draw=_draw,
)
