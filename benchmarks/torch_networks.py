"""Our networks and recipes in PyTorch, with the same numbers of parameters, and their training."""

import itertools
from collections.abc import Callable
from typing import Any

NUM_CLASSES, NUM_BATCHES = 10, 8  # training cycles through these batches


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


# Network, shape of an image, and the recipe's optimizer: configs/mnist_adasum.py and configs/cifar10.py.
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, int, int], dict[str, Any]]] = {
    "lenet5": (lenet5, (1, 28, 28), {"lr": 0.03278, "momentum": 0.9}),
    "resnet20": (resnet20, (3, 32, 32), {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
}


def parameter_groups(network: Any, *, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Returns the optimizer's parameter groups: weight decay for kernels, none for biases and BatchNorm."""
    parts: dict[bool, list[Any]] = {True: [], False: []}
    for parameter in network.parameters():
        parts[parameter.ndim > 1].append(parameter)
    return [{"params": parts[is_kernel], "weight_decay": weight_decay * is_kernel} for is_kernel in (True, False)]


def make_step(
    model: str, *, batch: int, memory: str, update: str, wrap: Callable[[Any], Any] = lambda network: network
) -> Callable[[int], float]:
    """Returns a function that trains for a number of steps, each on the next batch, and returns the last loss.

    Args:
      model: a name in ``MODELS``.
      batch: the number of examples in a step.
      memory: the memory layout of images and kernels, "contiguous_format" or "channels_last".
      update: "fused" or "plain".
      wrap: a function of the network that returns the network to train.
    """
    import torch
    from torch.nn import functional

    build, shape, options = MODELS[model]
    torch.manual_seed(0)
    layout = getattr(torch, memory)
    network = wrap(build().to(memory_format=layout).train())
    groups = parameter_groups(network, weight_decay=options.get("weight_decay", 0.0))
    rest = {name: value for name, value in options.items() if name != "weight_decay"}
    optimizer = torch.optim.SGD(groups, **rest, fused=True if update == "fused" else None)
    images = torch.randn(NUM_BATCHES * batch, *shape).contiguous(memory_format=layout)
    labels = torch.randint(NUM_CLASSES, (NUM_BATCHES * batch,))
    batches = itertools.cycle(list(zip(images.split(batch), labels.split(batch), strict=True)))

    def train(steps: int) -> float:
        for image, label in itertools.islice(batches, steps):
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(image), label)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    return train
