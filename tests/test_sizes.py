"""Configs in all their sizes: the papers' are traced whole, without data; siblings differ in sizes alone."""

import functools

import jax
import pytest
from ml_collections import ConfigDict

from configs import flags
from data.assumed import make_or_assume
from runs.errors import ConfigError
from tests import ROOT
from tests.in_process import DIGITS
from training import dry_run
from training.setup import make_setup

# Config and variant: devices, parameters, examples before an update, as the paper has them.
PAPER = {
    "cifar10_pixelcnn": (8, 5_856_128, 7 * 16),
    "cifar10_pixelcnn:1": (1, 5_856_128, 16),
    "cifar10_pixelcnn:16": (16, 5_856_128, 15 * 16),
    "imagenet_resnet50:2k": (64, 25_557_032, 2**11),
    "imagenet_resnet50:16k": (64, 25_557_032, 2**14),
    "imagenet_resnet50:64k": (64, 25_557_032, 2**16),
    "imagenet_resnet50_sum:2k": (64, 25_557_032, 2**11),
    "imagenet_resnet50_sum:16k": (64, 25_557_032, 2**14),
    "imagenet_resnet50_sum:64k": (64, 25_557_032, 2**16),
    "imagenet_resnet50_lars:64k": (64, 25_557_032, 2**16),
    "imagenet_inception:53": (53, 27_161_264, 50 * 32),
    "imagenet_inception:106": (106, 27_161_264, 100 * 32),
    "imagenet_inception:212": (53, 27_161_264, 200 * 32),
    "imagenet_inception_async:53": (53, 27_161_264, 32),
    "imagenet_inception_async:106": (106, 27_161_264, 32),
    "imagenet_inception_async:212": (212, 27_161_264, 32),
    "bert_lamb": (64, 336_232_258, 2**16),
    "bert_lamb:phase2": (64, 336_232_258, 2**15),
    "bert_lamb:128k": (128, 336_232_258, 2**17),
    "bert_adam": (64, 336_232_258, 2**16),
    "bert_adam:phase2": (64, 336_232_258, 2**15),
    "sibert": (8, 110_029_634, 2**8),
}
QUICK = {"cifar10_pixelcnn"}
SIBLINGS = ("gpu", "laptop")

# What siblings may differ in; a model or data set of another size has another name.
SIZES = {"model", "data", "num_workers", "batch_size_per_worker", "accumulation.count", "reducer.num_required"}
SIZES |= {"task.max_predictions", "eval_batch_size", "ema_decay", "optimizer.learning_rate"}  # which follow from them
LENGTHS = ("_steps", "_epochs")


def load(spec):
    name, _, variant = spec.partition(":")
    return flags.load(f"{ROOT}/configs/{name}.py" + (variant and f":{variant}"))


def counted(setup):
    """Workers' batches in an update."""
    return setup.reducer.num_counted or setup.gradients_per_step


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))  # nothing is prepared there


@pytest.mark.parametrize("spec", PAPER)
def test_a_paper_scale_config_has_the_sizes_of_the_paper(spec, no_data):
    _, num_parameters, num_examples = PAPER[spec]
    setup = make_setup(load(spec), open_data=make_or_assume)
    assert counted(setup) * setup.config.batch_size_per_worker == num_examples
    assert sum(leaf.size for leaf in jax.tree.leaves(setup.worker_shapes.params)) == num_parameters


# One of each network and each server, since tracing them takes minutes.
TRACED = (
    "cifar10_pixelcnn",
    "imagenet_resnet50:64k",
    "imagenet_inception:212",
    "imagenet_inception_async:53",
    "bert_lamb",
)


@pytest.mark.timeout(900)  # BERT-Large takes minutes beside other tests
@pytest.mark.parametrize("spec", TRACED)
def test_a_paper_scale_config_is_traced_whole(spec, no_data):
    num_devices, num_parameters, _ = PAPER[spec]
    setup = make_setup(load(spec), open_data=make_or_assume)
    said = dry_run.describe(setup, num_devices=num_devices, compiled="never")
    assert f"{num_parameters:,}" in said and "without activations" in said
    assert "data not at hand" in said and f"{setup.examples_per_step:,}" in said


def families():
    """Every config that has siblings."""
    for path in sorted((ROOT / "configs").glob("*.py")):
        for variant in SIBLINGS:
            try:
                yield path.stem, variant, flags.load(f"{path}:{variant}")
            except (ConfigError, AttributeError):
                continue


FAMILIES = list(families())


def test_every_paper_scale_config_has_siblings():
    assert {(name, variant) for name, variant, _ in FAMILIES} >= {
        (spec.partition(":")[0], variant) for spec in PAPER for variant in SIBLINGS
    }


@pytest.mark.parametrize(
    ("name", "variant", "sibling"), FAMILIES, ids=lambda value: value if str(value) == value else ""
)
def test_siblings_differ_only_in_sizes(name, variant, sibling):
    paper = load(name)
    for key, value in sibling.items():
        if key in SIZES or key.endswith(LENGTHS) or value == paper[key]:
            continue
        assert isinstance(value, ConfigDict) and isinstance(paper[key], ConfigDict), key
        differing = {inner for inner in {*value, *paper[key]} if value.get(inner) != paper[key].get(inner)}
        assert all(f"{key}.{inner}" in SIZES or inner.endswith(LENGTHS) for inner in differing), (key, differing)


def test_the_check_of_siblings_rejects_another_method():
    sibling = load("imagenet_resnet50:laptop").unlock()
    sibling.reducer_on = "gradients"
    with pytest.raises(AssertionError):
        test_siblings_differ_only_in_sizes("imagenet_resnet50", "laptop", sibling)


def test_an_unknown_variant_is_told_what_there_is():
    with pytest.raises(ConfigError, match="variant='huge': allowed: 16k, 2k, 64k, gpu, laptop, smoke"):
        load("imagenet_resnet50:huge")


def test_data_that_nobody_knows_are_refused_in_a_dry_run_too(tmp_path):
    with pytest.raises(ValueError, match="not a known data set"):
        make_or_assume("imaginary", dir=str(tmp_path))
    with pytest.raises(ValueError, match="which placement='device' does not allow"):
        make_or_assume("imagenet2012", dir=str(tmp_path), image_size=64, placement="device")
    source = make_or_assume("imagenet2012", dir=str(tmp_path), image_size=64)
    with pytest.raises(ValueError, match="data not at hand"):
        source.load(0)


def test_a_dry_run_says_what_does_not_fit(monkeypatch):
    setup = make_setup(flags.load(DIGITS))
    say = functools.partial(dry_run.describe, setup, num_devices=2, compiled="never")
    assert "does not fit" not in say()
    monkeypatch.setattr(dry_run, "LARGE_DEVICE", 100_000)
    assert "  does not fit into the 100,000 of an H100; 8 devices have one worker each" in say().splitlines()
