"""The parts of ``benchmarks.gpu`` with their targets, at full size and with small models of the same kinds."""

import math
import typing
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from benchmarks.kit import step_loop
from benchmarks.kit.contenders import GIB, Contender, Part, compiling, faster, peak, reduction_share
from benchmarks.kit.result import Target
from parallel import Lanes

Size = Literal["full", "tiny"]
SIZES: tuple[Size, ...] = ("full", "tiny")
COMPILED = Target("<=", 60)  # seconds from the trace of a step to its programs
MEAN = ("reducer.name=mean", "reducer_on=gradients")
UPDATES = ("reducer.name=adasum", "reducer_on=updates")
SEVERAL = 8  # steps a call: the default of train.py on a GPU that holds the training data
PEERS = {"resnet50": ("torch", "torchvision"), "bert_large": ("torch", "transformers"), "lenet5": ("torch",)}
SMALL_PEERS = {"resnet50": "tiny_resnet", "bert_large": "tiny_bert", "lenet5": "lenet5"}


class Makers(NamedTuple):
    """Makes contenders of a size.

    Attributes:
      size: "tiny" takes the smallest variants of our configs, small models of PyTorch, and two calls a turn.
      platform: of the device.
    """

    size: Size
    platform: str

    def ours(
        self,
        name: str,
        config: str,
        *overrides: str,
        workers: int,
        batch: int,
        updates: int,
        part: step_loop.Part = "step",
        steps_per_call: int = 1,
        examples: int | None = None,
    ) -> Contender:
        """Returns a contender of ours.

        Args:
          name: a description.
          config: the config's name.
          *overrides: further keys of the config, "key=value" each.
          workers: W, all of them lanes of one device.
          batch: the examples of a worker.
          updates: the updates of a turn.
          part: the part of the step.
          steps_per_call: steps of one call.
          examples: the examples of an update; None for those of all workers.
        """
        variant, count = ("", updates) if self.size == "full" else (":smoke", 2 * steps_per_call)
        sizes = (f"num_workers={workers}", f"batch_size_per_worker={batch}")
        line = " ".join((part, config + variant, f"{count}/{steps_per_call}", *sizes, *overrides))
        return Contender(name, line, examples or workers * batch)

    def pytorch(self, name: str, model: str, *flags: str, batch: int, updates: int) -> Contender:
        """Returns a contender of PyTorch: a model of ``torch_networks``, and further flags of ``torch_twins``."""
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
      size: of the contenders: "full", or "tiny" for small ones of the same kinds.
      platform: of the device.
      memory: the bytes that a process takes of the device's memory by default; NaN if they are not known.
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
    one_name, lanes_name, many_name = f"1 x {whole} mean", f"{n.lanes} x {n.batch} mean", f"{n.many} x {n.batch} mean"
    adasum_name, local_name = f"{n.lanes} x {n.batch} Adasum of updates", "the same without reduction and update"
    by_lanes: dict[str, Any] = {"workers": n.lanes, "batch": n.batch, "updates": 20}
    one = make.ours(one_name, config, *MEAN, workers=1, batch=whole, updates=20)
    lanes = make.ours(lanes_name, config, *MEAN, **by_lanes)
    adasum = make.ours(adasum_name, config, *UPDATES, **by_lanes)
    local = make.ours(local_name, config, *UPDATES, part="local", **by_lanes)
    many = make.ours(many_name, config, *MEAN, workers=n.many, batch=n.batch, updates=5)
    flags = ("--precision=bfloat16", "--compile")
    peer = make.pytorch("PyTorch compiled", "resnet50", *flags, batch=whole, updates=20)
    return {
        "resnet50": Part(
            (one, lanes, adasum, peer),
            (
                faster(f"ResNet-50, {lanes_name} over {one_name}", lanes_name, one_name, Target(">=", 0.9)),
                faster(f"ResNet-50, {adasum_name} over {one_name}", adasum_name, one_name, Target(">=", 0.87)),
                faster(f"ResNet-50, {one_name} over PyTorch compiled", one_name, peer.name, Target(">=", 1)),
                compiling(f"ResNet-50, {lanes_name}, trace to programs", lanes_name, COMPILED),
            ),
        ),
        "resnet50-1024": Part(
            (many, one),
            (
                faster(f"ResNet-50, {many_name} over {one_name}", many_name, one_name, Target(">=", 0.9)),
                peak(f"ResNet-50, {many_name}, peak memory", many_name, Target("<", 40)),
            ),
        ),
        "reduction": Part(
            (adasum, local),
            (
                reduction_share(
                    f"ResNet-50, {adasum_name}, reduction and update", adasum_name, local_name, Target("<=", 0.03)
                ),
            ),
        ),
    }


def _bert_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole, config, plain = 4 * n.batch, "bert_lamb", ("accumulation.count=1", "model.remat=none")
    one_name, lanes_name = f"1 x {whole} LAMB", f"{n.bert_lanes} x {whole // n.bert_lanes} Adasum of LAMB's deltas"
    one = make.ours(one_name, config, *MEAN, *plain, workers=1, batch=whole, updates=10)
    by_lanes: dict[str, Any] = {"workers": n.bert_lanes, "batch": whole // n.bert_lanes, "updates": 10}
    lanes = make.ours(lanes_name, config, *UPDATES, *plain, **by_lanes)
    peer_name, flags = "PyTorch eager AdamW", ("--precision=bfloat16",)
    peer = make.pytorch(peer_name, "bert_large", *flags, batch=whole, updates=10)
    return {
        "bert": Part(
            (one, peer),
            (
                faster(f"BERT-Large, {one_name} over {peer_name}", one_name, peer_name, Target(">=", 1)),
                compiling(f"BERT-Large, {one_name}, trace to programs", one_name, COMPILED),
            ),
            "sequences",
        ),
        "bert-adasum": Part(
            (lanes, one),
            (
                faster(f"BERT-Large, {lanes_name} over {one_name}", lanes_name, one_name, Target(">=", 0.9)),
                compiling(f"BERT-Large, {lanes_name}, trace to programs", lanes_name, COMPILED),
            ),
            "sequences",
        ),
    }


def _small_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole = n.many * n.small_batch
    one_name, many_name = f"1 x {whole} mean", f"{n.many} x {n.small_batch} mean"
    often: dict[str, Any] = {"steps_per_call": SEVERAL}
    one = make.ours(one_name, "cifar10", *MEAN, workers=1, batch=whole, updates=80, **often)
    many = make.ours(many_name, "cifar10", *MEAN, workers=n.many, batch=n.small_batch, updates=80, **often)
    adasum_name, peer_name, images = f"{n.many} x {n.batch} Adasum of updates", "PyTorch eager", n.many * n.batch
    by_lanes: dict[str, Any] = {"workers": n.many, "batch": n.batch, "updates": 320}
    adasum = make.ours(adasum_name, "mnist_adasum", *UPDATES, **by_lanes, **often)
    peer = make.pytorch(peer_name, "lenet5", batch=images, updates=300)
    waves: dict[str, Any] = {"workers": n.asynchronous, "batch": n.batch, "updates": 106}
    of_auto, *others = (
        make.ours(f"lanes={lanes}", "mnist_async_53", f"lanes={lanes}", examples=n.batch, **waves)
        for lanes in typing.get_args(Lanes)
    )
    title = f"MNIST CNN, asynchronous, {n.asynchronous} workers"
    return {
        "resnet20": Part(
            (one, many),
            (faster(f"ResNet-20, {many_name} over {one_name}", many_name, one_name, Target(">=", 0.9)),),
        ),
        "lenet5": Part(
            (adasum, peer),
            (faster(f"LeNet-5, {adasum_name} over {peer_name} at {images}", adasum_name, peer_name, Target(">=", 1)),),
        ),
        "async": Part(
            (of_auto, *others),
            tuple(faster(f"{title}, {of_auto.name} over {c.name}", of_auto.name, c.name) for c in others),
        ),
    }


def _fit(make: Makers, n: Counts, *, target: Target | None) -> Part:
    every: dict[str, Any] = {"workers": n.most, "batch": 1, "updates": 3}
    late = f"reducer.num_required={n.most - n.most // 17}"
    cnn = make.ours(f"MNIST CNN, {n.most} x 1", "mnist_backup_106", late, **every)
    inception = make.ours(f"Inception-v3, {n.most} x 1", "imagenet_inception", late, **every)
    return Part((inception, cnn), tuple(peak(f"{c.name}, peak memory", c.name, target) for c in (cnn, inception)))
