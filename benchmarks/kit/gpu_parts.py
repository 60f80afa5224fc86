"""The parts of ``benchmarks.gpu`` with their targets, at full size and with small models of the same kinds."""

import math
import typing
from collections.abc import Mapping
from typing import Literal, NamedTuple

from benchmarks.kit.contenders import GIB, Contender, Part, compiling, faster, peak
from benchmarks.kit.result import Target
from parallel import Lanes

Size = Literal["full", "tiny"]
SIZES: tuple[Size, ...] = typing.get_args(Size)
MEAN = ("reducer.name=mean", "reducer_on=gradients")
UPDATES = ("reducer.name=adasum", "reducer_on=updates")
PEERS = {"resnet50": ("torch", "torchvision"), "bert_large": ("torch", "transformers"), "lenet5": ("torch",)}
SMALL_PEERS = {"resnet50": "tiny_resnet", "bert_large": "tiny_bert", "lenet5": "lenet5"}


class Makers(NamedTuple):
    """Makes contenders of one size.

    Attributes:
      size: "tiny" takes the smallest variants of our configs, small models of PyTorch, and two calls a turn.
      platform: the platform of the device, such as "gpu".
    """

    size: Size
    platform: str

    def ours(self, what: str, config: str, turn: str, workers: int, batch: int, *overrides: str) -> Contender:
        """Returns a contender of ours, whose workers are all lanes of one device.

        Args:
          what: the end of its name, after "W x B".
          config: the config's name.
          turn: the number of updates in a turn: "UPDATES", or "UPDATES/K" in calls of K steps.
          workers: W.
          batch: B, the examples of a worker.
          *overrides: further keys of the config, "key=value" each.
        """
        if self.size == "tiny":
            config, steps_per_call = f"{config}:smoke", int(turn.partition("/")[2] or 1)
            turn = f"{2 * steps_per_call}/{steps_per_call}"
        sizes = (f"num_workers={workers}", f"batch_size_per_worker={batch}")
        line = " ".join(("step", config, turn, *sizes, *overrides))
        return Contender(f"{workers} x {batch} {what}", line, workers * batch)

    def pytorch(self, name: str, model: str, updates: int, batch: int, *flags: str) -> Contender:
        """Returns a PyTorch contender: a model of ``twins.networks`` with further flags for ``twins.training``."""
        chosen, count = (model, updates) if self.size == "full" else (SMALL_PEERS[model], 2)
        device = "cuda" if self.platform == "gpu" else "cpu"
        line = " ".join((f"--model={chosen} --batch={batch} --steps={count} --device={device}", *flags))
        return Contender(name, line, batch, PEERS[model])


class Counts(NamedTuple):
    """The workers and batches of a size."""

    lanes: int
    many: int
    batch: int
    small_batch: int
    bert_lanes: int
    asynchronous: int
    most: int


COUNTS: Mapping[Size, Counts] = {
    "full": Counts(lanes=8, many=32, batch=32, small_batch=16, bert_lanes=4, asynchronous=53, most=212),
    "tiny": Counts(lanes=2, many=4, batch=4, small_batch=2, bert_lanes=2, asynchronous=3, most=6),
}


def make_parts(size: Size, *, platform: str, memory: float = math.nan) -> dict[str, Part]:
    """Returns all parts by name, the most important ones first.

    Args:
      size: "full", or "tiny" for small contenders of the same kinds.
      platform: the platform of the device.
      memory: the bytes of the device's memory that a process takes by default; NaN if unknown.
    """
    make, n = Makers(size, platform), COUNTS[size]
    resnet = _resnet_parts(make, n)
    bert = _bert_parts(make, n)
    fits = None if math.isnan(memory) else Target("<=", round(memory / GIB, 1))
    return {
        "resnet50": resnet["resnet50"],
        "bert": bert["bert"],
        **_small_parts(make, n),
        **resnet,
        **bert,
        "fit": _fit(make, n, target=fits),
    }


def _resnet_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole, config = n.lanes * n.batch, "imagenet_resnet50"
    one = make.ours("mean", config, "20", 1, whole, *MEAN)
    lanes = make.ours("mean", config, "20", n.lanes, n.batch, *MEAN)
    adasum = make.ours("Adasum of updates", config, "20", n.lanes, n.batch, *UPDATES)
    many = make.ours("mean", config, "5", n.many, n.batch, *MEAN)
    peer = make.pytorch("PyTorch compiled", "resnet50", 20, whole, "--precision=bfloat16", "--compile")
    return {
        "resnet50": Part(
            (one, lanes, adasum, peer),
            (
                faster("ResNet-50", lanes, one, Target(">=", 0.9)),
                faster("ResNet-50", adasum, one, Target(">=", 0.87)),
                faster("ResNet-50", one, peer, Target(">=", 1)),
                compiling("ResNet-50", lanes),
            ),
        ),
        "resnet50-1024": Part(
            (many, one),
            (faster("ResNet-50", many, one, Target(">=", 0.9)), peak("ResNet-50, ", many, Target("<", 40))),
        ),
    }


def _bert_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole, batch, config = 4 * n.batch, 4 * n.batch // n.bert_lanes, "bert_lamb"
    plain = ("accumulation.count=1", "model.remat=none")
    one = make.ours("LAMB", config, "10", 1, whole, *MEAN, *plain)
    lanes = make.ours("Adasum of LAMB's deltas", config, "10", n.bert_lanes, batch, *UPDATES, *plain)
    peer = make.pytorch("PyTorch eager AdamW", "bert_large", 10, whole, "--precision=bfloat16")
    rows = (faster("BERT-Large", one, peer, Target(">=", 1)), compiling("BERT-Large", one))
    rows_of_lanes = (faster("BERT-Large", lanes, one, Target(">=", 0.9)), compiling("BERT-Large", lanes))
    return {
        "bert": Part((one, peer), rows, "sequences"),
        "bert-adasum": Part((lanes, one), rows_of_lanes, "sequences"),
    }


def _small_parts(make: Makers, n: Counts) -> dict[str, Part]:
    # Calls have 8 steps, the default of train.py on a GPU that holds the training data.
    whole, images = n.many * n.small_batch, n.many * n.batch
    one = make.ours("mean", "cifar10", "80/8", 1, whole, *MEAN)
    many = make.ours("mean", "cifar10", "80/8", n.many, n.small_batch, *MEAN)
    adasum = make.ours("Adasum of updates", "mnist_adasum", "320/8", n.many, n.batch, *UPDATES)
    peer = make.pytorch("PyTorch eager", "lenet5", 300, images)
    by_lanes = []
    for lanes in typing.get_args(Lanes):
        ours = make.ours("", "mnist_async_53", "106", n.asynchronous, n.batch, f"lanes={lanes}")
        by_lanes.append(ours._replace(name=f"lanes={lanes}", examples=n.batch))  # of an asynchronous update
    auto, *others = by_lanes
    title = f"MNIST CNN, asynchronous, {n.asynchronous} workers"
    over_peer = faster("LeNet-5", adasum, peer, Target(">=", 1))
    return {
        "resnet20": Part((one, many), (faster("ResNet-20", many, one, Target(">=", 0.9)),)),
        "lenet5": Part((adasum, peer), (over_peer._replace(name=f"{over_peer.name} at {images}"),)),
        "async": Part((auto, *others), tuple(faster(title, auto, other) for other in others)),
    }


def _fit(make: Makers, n: Counts, *, target: Target | None) -> Part:
    late = f"reducer.num_required={n.most - n.most // 17}"
    contenders, rows = [], []
    for name, config in (("Inception-v3", "imagenet_inception"), ("MNIST CNN", "mnist_backup_106")):
        ours = make.ours("", config, "3", n.most, 1, late)
        contenders.append(ours._replace(name=f"{name}, {n.most} x 1"))
        rows.append(peak("", contenders[-1], target))
    return Part(tuple(contenders), tuple(rows))
