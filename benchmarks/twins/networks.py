"""Our networks and recipes in PyTorch, with the same numbers of parameters, and their training."""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

NUM_CLASSES, NUM_BATCHES = 10, 8  # training cycles through NUM_BATCHES batches
VOCAB_SIZE, NUM_PREDICTIONS = 30_528, 20  # of configs/bert_lamb.py


def lenet5() -> Any:
    """Returns the network of ``models.convolutional.LeNet5``, for 28x28x1."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(512, NUM_CLASSES),
    )


def resnet20() -> Any:
    """Returns the network of ``models.resnet.ResNet20``, for 32x32x3."""
    from torch import nn
    from torch.nn import functional

    def convolution(inputs: int, outputs: int, stride: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs))

    class Block(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, inputs: int, outputs: int, stride: int):
            super().__init__()
            self.first, self.second = convolution(inputs, outputs, stride), convolution(outputs, outputs)
            self.stride, self.added = stride, outputs - inputs

        def forward(self, x):
            y = self.second(functional.relu(self.first(x), inplace=True))
            if self.added:  # every second pixel, and channels of zeros
                x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
            return functional.relu(x + y, inplace=True)

    widths = [16] * 4 + [32] * 3 + [64] * 3  # the stem, then three blocks each
    blocks = [Block(a, b, stride=b // a) for a, b in itertools.pairwise(widths)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, NUM_CLASSES))
    return nn.Sequential(convolution(3, 16), nn.ReLU(inplace=True), *blocks, *head)


def resnet50(num_blocks: tuple[int, ...] = (3, 4, 6, 3)) -> Any:
    """Returns torchvision's ResNet-50, the network of ``models.resnet.ResNet50``; or one with fewer blocks."""
    from torchvision.models import resnet

    return resnet.ResNet(resnet.Bottleneck, list(num_blocks), zero_init_residual=True)


def bert(*, hidden_size: int, num_layers: int, num_heads: int) -> Any:
    """Returns the BERT of transformers, with both heads: the network of ``models.bert``, with its dropout rates."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        intermediate_size=4 * hidden_size,
        attn_implementation="sdpa",
    )
    return transformers.BertForPreTraining(config)


class Network(NamedTuple):
    """A network and its recipe.

    Attributes:
      build: makes the network.
      shape: the shape of an image, or (T,) for sequences of T tokens.
      options: options of momentum SGD, or of AdamW for sequences.
      num_classes: the number of classes of the images.
    """

    build: Callable[[], Any]
    shape: tuple[int, ...]
    options: Mapping[str, Any]
    num_classes: int = NUM_CLASSES


# The recipes are those of configs/mnist_adasum.py and configs/cifar10.py.
MODELS = {
    "lenet5": Network(lenet5, (1, 28, 28), {"lr": 0.03278, "momentum": 0.9}),
    "resnet20": Network(resnet20, (3, 32, 32), {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
}
# For an accelerator, from other libraries: configs/imagenet_resnet50.py, and configs/bert_lamb.py with AdamW; and small
# ones of the same kinds.
_SGD, _ADAMW = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}, {"lr": 1e-4, "eps": 1e-6, "weight_decay": 0.01}
LARGE = {
    "resnet50": Network(resnet50, (3, 224, 224), _SGD, num_classes=1000),
    "tiny_resnet": Network(lambda: resnet50((1, 1, 1, 1)), (3, 32, 32), _SGD, num_classes=1000),
    "bert_large": Network(lambda: bert(hidden_size=1024, num_layers=24, num_heads=16), (128,), _ADAMW),
    "tiny_bert": Network(lambda: bert(hidden_size=16, num_layers=1, num_heads=2), (32,), _ADAMW),
}
NETWORKS = {**MODELS, **LARGE}


def parameter_groups(network: Any, *, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Returns the optimizer's parameter groups: weight decay for kernels, none for biases and BatchNorm."""
    parts: dict[bool, list[Any]] = {True: [], False: []}
    for parameter in network.parameters():
        parts[parameter.ndim > 1].append(parameter)
    return [{"params": parts[is_kernel], "weight_decay": weight_decay * is_kernel} for is_kernel in (True, False)]


def make_step(
    model: str,
    *,
    batch: int,
    memory: str,
    update: str,
    compiled: bool = False,
    device: str = "cpu",
    precision: str = "float32",
) -> Callable[[int], float]:
    """Returns a function that trains for a number of steps, each on the next batch, and returns the last loss.

    Args:
      model: a name in ``NETWORKS``.
      batch: the number of examples in a step.
      memory: the memory layout of images and kernels, "contiguous_format" or "channels_last".
      update: "fused" or "plain".
      compiled: whether to use ``torch.compile``.
      device: the device of the network and the data.
      precision: "bfloat16" computes by autocast.
    """
    import torch

    network_of = NETWORKS[model]
    torch.manual_seed(0)
    with torch.device(device):
        network = network_of.build().train()
    layout, is_text = getattr(torch, memory), len(network_of.shape) == 1
    network = network.to(memory_format=layout)
    network = torch.compile(network) if compiled else network
    groups = parameter_groups(network, weight_decay=network_of.options.get("weight_decay", 0.0))
    rest = {name: value for name, value in network_of.options.items() if name != "weight_decay"}
    fused = True if update == "fused" else None
    optimizer: Any = (torch.optim.AdamW if is_text else torch.optim.SGD)(groups, **rest, fused=fused)
    make_batches, loss_of = (_texts, _text_loss) if is_text else (_images, _image_loss)
    with torch.device(device):
        batches = itertools.cycle(make_batches(network_of, batch, layout))
    cast = torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()

    def train(steps: int) -> float:
        for inputs in itertools.islice(batches, steps):
            optimizer.zero_grad()
            with cast:
                loss = loss_of(network, inputs)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    return train


def _images(network: Network, batch: int, layout: Any) -> list[Any]:
    import torch

    images = torch.randn(NUM_BATCHES * batch, *network.shape).contiguous(memory_format=layout)
    labels = torch.randint(network.num_classes, (NUM_BATCHES * batch,))
    return list(zip(images.split(batch), labels.split(batch), strict=True))


def _image_loss(network: Any, inputs: Any) -> Any:
    from torch.nn import functional

    images, labels = inputs
    return functional.cross_entropy(network(images), labels)


def _texts(network: Network, batch: int, layout: Any) -> list[Any]:
    import torch

    del layout
    (length,), batches = network.shape, []
    for _ in range(NUM_BATCHES):
        tokens = torch.randint(5, VOCAB_SIZE, (batch, length))
        chosen = torch.rand(batch, length).argsort(dim=1) < min(NUM_PREDICTIONS, round(0.15 * length))
        batches.append(
            {
                "input_ids": tokens,
                "token_type_ids": (torch.arange(length) > length // 2).long().expand(batch, length).contiguous(),
                "labels": torch.where(chosen, tokens, -100),
                "next_sentence_label": torch.randint(2, (batch,)),
            }
        )
    return batches


def _text_loss(network: Any, inputs: Any) -> Any:
    return network(**inputs).loss
