"""Forward passes agree with torchvision's on the same weights and statistics, all of them random."""

import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from models import inception, resnet
from tests.started import python

REASON = "development only: pip install -r requirements-oracle.txt"

# Largest difference of a logit from torchvision's, as a share of what two images' logits differ by: roundings are 1e-7
# and 1e-16, through up to 94 layers.
TOLERANCE = {"float32": 1e-4, "float64": 1e-13}


def resnet_name(path):
    """Ours is ``stage1_block2/conv1``, torchvision's ``layer1.1.conv1``."""
    name = ".".join(path)
    name = re.sub(r"stage(\d+)_block(\d+)", lambda m: f"layer{m[1]}.{int(m[2]) - 1}", name)
    name = name.replace("stem_conv", "conv1").replace("stem_norm", "bn1").replace("norm", "bn").replace("dense", "fc")
    return name.replace("shortcut_conv", "downsample.0").replace("shortcut_bn", "downsample.1")


def inception_name(path):
    return ".".join(path).replace("norm", "bn").replace("dense", "fc")


LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
TRANSPOSED = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}  # from torch: OIHW to HWIO, OI to IO


def converted(theirs, shapes, name_of):
    """Returns variables in our shapes from torch's state; takes every parameter of it, so that none is forgotten."""
    state = {name: x.numpy() for name, x in theirs.state_dict().items() if not name.endswith("num_batches_tracked")}

    def take(path, leaf):
        *modules, kind = [key.key for key in path[1:]]
        x = state.pop(f"{name_of(modules)}.{LEAVES[kind]}")
        x = x.transpose(TRANSPOSED[x.ndim])
        assert x.shape == leaf.shape
        return x

    variables = jax.tree_util.tree_map_with_path(take, shapes)
    assert not state
    return variables


def randomise(torch, module):
    """Gives every parameter and statistic a random value such that activations neither vanish nor explode."""
    generator = torch.Generator().manual_seed(0)
    normal = lambda shape: torch.randn(shape, generator=generator, dtype=torch.get_default_dtype())  # noqa: E731
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                layer.weight.copy_(normal(layer.weight.shape) * (2 / layer.weight[0].numel()) ** 0.5)
            if isinstance(layer, torch.nn.Linear):
                layer.bias.copy_(0.1 * normal(layer.bias.shape))
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.weight.copy_(1 + 0.1 * normal(layer.weight.shape))
                layer.bias.copy_(0.1 * normal(layer.bias.shape))
                layer.running_mean.copy_(0.1 * normal(layer.running_mean.shape))
                layer.running_var.copy_((0.2 * normal(layer.running_var.shape)).exp())


CASES = {  # our model, torchvision's name and arguments, names of parameters, sizes of images
    "resnet18": (resnet.ResNet18, {}, resnet_name, (224, 97)),
    "resnet50": (resnet.ResNet50, {}, resnet_name, (224, 97)),
    "inception_v3": (inception.InceptionV3, {"init_weights": False}, inception_name, (299, 75)),
}


def compare(name, dtype):
    """Holds our logits against torchvision's, of two images of each size.

    Returns size -> (largest difference, largest distance between the two images, largest logit).
    """
    torch, torchvision = (pytest.importorskip(package, reason=REASON) for package in ("torch", "torchvision"))
    model, kwargs, name_of, sizes = CASES[name]
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        theirs = getattr(torchvision.models, name)(**kwargs).eval()
        randomise(torch, theirs)
        ours = model(num_classes=1000, dtype=dtype)
        image = jnp.zeros((1, sizes[0], sizes[0], 3))
        variables = converted(theirs, jax.eval_shape(ours.init, jax.random.key(0), image), name_of)
        found = {}
        for size in sizes:
            rng = np.random.default_rng(size)
            image = (rng.standard_normal((2, size, size, 3)) + rng.standard_normal((2, 1, 1, 3))).astype(dtype)
            with torch.no_grad():
                expected = theirs(torch.from_numpy(image.transpose(0, 3, 1, 2).copy())).numpy()
            got = np.asarray(jax.jit(ours.apply)(variables, image))
            assert got.dtype == expected.dtype == dtype
            found[size] = (np.abs(got - expected).max(), np.ptp(expected, axis=0).max(), np.abs(expected).max())
    finally:
        torch.set_default_dtype(torch.float32)
    for size, (difference, between_images, largest) in found.items():
        print(
            f"{name} {size}x{size} {dtype}: largest difference {difference:.1e}, "
            f"between two images {between_images:.2g}, largest logit {largest:.2g}"
        )
    return found


def is_rounding(found, dtype):
    """Returns whether images differ clearly and the models by rounding alone."""
    return all(
        1e-2 * largest < between_images and difference < TOLERANCE[dtype] * between_images
        for difference, between_images, largest in found.values()
    )


@pytest.mark.parametrize("name", CASES)
def test_agrees_in_float32(name):
    assert is_rounding(compare(name, "float32"), "float32")


@pytest.mark.parametrize("name", CASES)
def test_difference_is_rounding(name):
    """In float64, in a process of its own, the difference shrinks as the rounding does."""
    for package in ("torch", "torchvision"):
        pytest.importorskip(package, reason=REASON)
    code = f"from tests.test_vision_oracle import *; assert is_rounding(compare({name!r}, 'float64'), 'float64')"
    done = python("-c", code, timeout=300, JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu")
    print(done.stdout)
    assert done.returncode == 0, done.stderr
