"""The benchmarks of the whole step: twins are the same networks, and ratios are of images per second."""

import importlib.util
import math

import jax
import numpy as np
import pytest

from benchmarks import step
from benchmarks.kit import step_loop, taking_turns
from benchmarks.twins import networks, training
from data.examples import Info
from models import bert, convolutional, resnet
from parallel import Layout

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="benchmarks only: pip install -r requirements-bench.txt"
)


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")


# ---- the twins ---------------------------------------------------------------------------------------------------

OURS = {"lenet5": (convolutional.LeNet5(10), (1, 28, 28, 1)), "resnet20": (resnet.ResNet20(10), (1, 32, 32, 3))}


def test_every_twin_is_of_a_model_of_ours():
    assert set(OURS) == set(networks.MODELS) == {one.model for one in step.COMPARISONS}


@needs_torch
@pytest.mark.parametrize("model", OURS)
def test_twins_have_as_many_parameters(model):
    network, shape = OURS[model]
    params = jax.eval_shape(network.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, np.float32))["params"]
    build = networks.MODELS[model].build
    image = networks.MODELS[model].shape
    theirs = list(build().parameters())
    assert sorted(leaf.size for leaf in jax.tree.leaves(params)) == sorted(leaf.numel() for leaf in theirs)
    assert image == (shape[-1], *shape[1:-1])
    kernels, others = networks.parameter_groups(build(), weight_decay=1e-4)
    assert (kernels["weight_decay"], others["weight_decay"]) == (1e-4, 0)
    assert {p.ndim for p in kernels["params"]} == {2, 4} and {p.ndim for p in others["params"]} == {1}


@needs_torch
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_a_twin_trains(memory):
    train = networks.make_step("resnet20", batch=2, memory=memory, update="fused")
    first = train(1)
    assert math.isfinite(first) and train(8) != first  # the batch of the first step again


@needs_torch
@pytest.mark.parametrize("model", OURS)
def test_recipes_are_the_same(model):
    (one, *_) = [one for one in step.COMPARISONS if one.model == model]
    config = step_loop.load(one.config[0], one.config[1:]).config
    found = dict(config.optimizer)
    for transform in found.pop("transforms", ()):
        found |= {key: value for key, value in transform.items() if key not in ("name", "mask")}
    options = networks.MODELS[model].options
    expected = {"lr" if key == "learning_rate" else key: value for key, value in found.items() if key != "name"}
    assert options == {key: value for key, value in expected.items() if key in options}
    assert not expected.get("nesterov") or options["nesterov"]
    assert config.num_workers * config.batch_size_per_worker == one.batch


def test_the_fastest_variant_is_kept(monkeypatch):
    clock = iter([5.0, 1.0, 3.0, 0.1, 2.0, 2.0])  # the first step of each is not looked at
    monkeypatch.setattr(taking_turns, "timed", lambda work: next(clock))
    assert training.fastest({"a": lambda: str, "b": lambda: repr}) == ("a", str)


# ---- our turn ----------------------------------------------------------------------------------------------------

TINY = ("data.name=digits", "num_workers=2", "batch_size_per_worker=4", "model.name=softmax")


def test_a_turn_without_training_is_no_measurement():
    setup = step_loop.load("mnist_adasum", [*TINY, "optimizer.learning_rate=1e38"])
    training = step_loop.Loop(setup, Layout.of(2, num_devices=2), num_updates=8)
    with pytest.raises(FloatingPointError, match="not finite"):
        for _ in range(3):
            training()


def test_only_images_and_tokens_are_made_up():
    sound = Info({"sound": jax.ShapeDtypeStruct((8,), np.float32)}, {}, 5, 5, constants={})
    with pytest.raises(ValueError, match="data of sound: must be images of bytes, with labels, or tokens"):
        step_loop.made_up(sound)


@needs_torch
@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("lenet5", ()),
        pytest.param("tiny_resnet", ("--precision=bfloat16",), marks=needs("torchvision")),
        pytest.param("tiny_bert", ("--precision=bfloat16",), marks=needs("transformers")),
    ],
)
def test_a_contender_of_an_accelerator(model, flags):
    given = training.parse([f"--model={model}", "--batch=4", "--steps=2", "--device=cpu", *flags])
    contender = training.Contender(given)
    assert contender.answer("compile") > 0
    assert contender.answer("go") > 0
    assert math.isnan(contender.answer("peak"))


LARGE = {
    "resnet50": (lambda: resnet.ResNet50(1000), [((1, 224, 224, 3), np.float32)]),
    "bert_large": (lambda: bert.BertLarge(networks.VOCAB_SIZE), 3 * [((1, 8), np.int32)]),
}


@needs_torch
@pytest.mark.parametrize(
    "model",
    [
        pytest.param("resnet50", marks=needs("torchvision")),
        pytest.param("bert_large", marks=needs("transformers")),
    ],
)
def test_large_networks_have_as_many_parameters(model):
    import torch

    make, inputs = LARGE[model]
    shapes = [jax.ShapeDtypeStruct(*each) for each in inputs]
    params = jax.eval_shape(make().init, jax.random.key(0), *shapes)["params"]
    with torch.device("meta"):
        theirs = sum(leaf.numel() for leaf in networks.LARGE[model].build().parameters())
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == theirs


# ---- the comparisons ---------------------------------------------------------------------------------------------


def test_contenders_get_the_arguments_of_the_comparison():
    comparison = step.lenet5(32, devices=8, steps=4, over_pytorch=1.2)
    plain, tuned = (training.parse(arguments) for arguments in comparison.peers.values())
    assert plain.batch == tuned.batch == 1024 and (plain.tuned, tuned.tuned) == (False, True)
    assert list(training.variants_of(plain, threads=2)) == ["contiguous_format, plain update, 2 threads"]
    assert len(training.variants_of(tuned, threads=2)) == 8
    assert len(training.variants_of(tuned, threads=1)) == 4
    assert comparison.ours == "step mnist_adasum 4 num_workers=32"


def test_without_pytorch_nothing_starts(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(taking_turns, "Child", None)  # whoever starts one fails
    assert step.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines() == [f"benchmarks.step: {training.MISSING}"]
    assert training.main(["--model=lenet5", "--batch=4"]) == 2
    assert capsys.readouterr().err.splitlines() == [training.MISSING]


@pytest.mark.parametrize("flag", ["--model=resnet50", "--precision=bfloat16", "--compile"])
def test_what_is_of_accelerators_needs_a_device(flag, capsys):
    with pytest.raises(SystemExit, match="2"):
        training.parse(["--model=lenet5", "--batch=4", flag])
    assert "need device" in capsys.readouterr().err
