"""What the compilers of TPUs and GPUs make of reducers, steps and configs, for devices that are only described.

tests/compiled.txt has what each program needs; no test asserts a time.
"""

import json
import pathlib
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from compilers.estimate import estimate
from reducers import targets
from reducers.reducer import as_reducer
from tests import ROOT
from tests.in_process import DIGITS, train_py
from tests.test_meshes import MAKERS
from tests.test_refusals import GOSSIP, SERVER, SPREAD
from tests.test_train import CONFIGS

pytestmark = [pytest.mark.compilers, pytest.mark.usefixtures("three_widths")]

TPU, GPU = "v5e:2x2", "h100:4"


class Needs(NamedTuple):
    """What a step's programs need of a device: how many collectives and kernels, and kilobytes."""

    collectives: int
    kernels: int
    program: int
    temporaries: int


# Another release may fuse differently: so many times the table's number, and so many more, are allowed.
MARGINS = (1.0, 0), (1.3, 4), (1.3, 50), (1.3, 100)


def table() -> dict[str, Needs]:
    """Program and target -> what tests/compiled.txt says that it needs."""
    lines = (ROOT / "tests" / "compiled.txt").read_text().splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {" ".join(name): Needs(*map(int, numbers)) for *name, a, b, c, d in rows for numbers in [(a, b, c, d)]}


@pytest.fixture
def check(request, record_property):
    """Compares what a program needs with the table; with ``pytest --measure`` it goes there instead."""

    def compare(program: str, target: str, found: Needs) -> None:
        record_property("compiled", (f"{program} {target}", *found))
        if request.config.getoption("--measure"):
            return
        allowed = table()[f"{program} {target}"]
        more = [
            f"{name}: {number}, and {most} in the table"
            for name, number, most, (times, plus) in zip(Needs._fields, found, allowed, MARGINS, strict=True)
            if number > times * most + plus
        ]
        assert not more, "; ".join(more)

    return compare


# ---- reducers ----------------------------------------------------------------------------------------------------

LEAVES = {"matrix": (64, 80), "kernel": (3, 3, 16, 32), "bias": (32,), "scalar": ()}


def stacked(tree, count):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), tree)


@pytest.mark.parametrize("target", ["v5e:2x4", "h100:8"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_reducer_encoding_and_wrapper(name, target, check):
    shapes = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in LEAVES.items()}
    asked = targets.find(target)
    with asked.compiling() as devices:
        reducer = as_reducer(MAKERS[name]("worker"))
        state = jax.eval_shape(reducer.init, shapes)
        seconds = np.arange(8, 0, -1, dtype=np.float32)
        shared = {"arrival_seconds": seconds} if reducer.needs_arrivals else {}
        update = jax.pmap(lambda g, s: reducer.update(g, s, g, **shared), "worker", devices=devices, donate_argnums=1)
        compiled = update.lower(stacked(shapes, 8), stacked(state, 8)).compile()
    found = estimate(compiled, asked.kind)
    collectives = sum(int(count) for count, _ in found.collectives.values())
    needs = Needs(collectives, found.kernels, found.program_bytes // 1000, found.temporaries // 1000)
    check(f"reducer:{name}", target, needs)


# ---- steps -------------------------------------------------------------------------------------------------------


def dry_run(tmp_path: pathlib.Path, target: str, *arguments: str) -> Needs:
    """What ``train.py --dry_run`` says that all programs of a step need."""
    file = tmp_path / "numbers.json"
    assert train_py(*arguments, "--dry_run", f"--dry_run_target={target}", f"--dry_run_json={file}") == 0
    programs = json.loads(file.read_text())["programs"].values()
    collectives = sum(int(count) for each in programs for count, _ in each["collectives"].values())
    kernels, program, temporaries = (
        sum(each[name] for each in programs) for name in ("kernels", "program_bytes", "temporaries")
    )
    return Needs(collectives, kernels, program // 1000, temporaries // 1000)


MODES = {
    "pmap": "--config.mapping=pmap",
    "shard_map": "--config.mapping=shard_map",
    "dispatched": "--config.lanes=dispatched",
    "groups": "--config.lanes_at_once=2",
    "calls": "--steps_per_dispatch=8",
    "server": f"{SERVER} --config.arrivals.name=lognormal",
    "decentralised": SPREAD,
    "gossip": f"{GOSSIP} --config.ema_decay=None",
    "local": "--config.reducer.name=local_sgd --config.reducer.every_steps=4 --config.reducer_on=updates",
    "backups": "--config.reducer.name=backup_workers --config.reducer.num_required=12 --config.arrivals.name=lognormal",
    "accumulation": "--config.accumulation.count=2 --config.accumulation.combine=adasum",
}


@pytest.mark.parametrize("target", [TPU, GPU])
@pytest.mark.parametrize("mode", MODES)
def test_the_step_of_every_mode(mode, target, tmp_path, check):
    needs = dry_run(tmp_path, target, f"--config={DIGITS}", "--config.num_workers=16", *MODES[mode].split())
    check(f"mode:{mode}", target, needs)


TARGETS = {path.stem: (TPU, GPU)[i % 2] for i, path in enumerate(CONFIGS)}


@pytest.mark.parametrize("config", TARGETS)
def test_every_config_at_its_smallest(config, tmp_path, check):
    flags = f"--config={ROOT}/configs/{config}.py:smoke", "--config.num_workers=8"
    check(f"config:{config}", TARGETS[config], dry_run(tmp_path, TARGETS[config], *flags))


# Not the Adasum of these two configs, which alone takes a minute to compile for the leaves of ResNet-50.
MEAN = ("--config.reducer.name=mean", "--config.reducer_on=gradients")
LARGE = {  # config -> target, whose devices have a worker each; further flags
    "imagenet_resnet50:16k": ("v5e-16", *MEAN),
    "imagenet_inception:gpu": ("h100:8",),
    "bert_lamb:gpu": ("h100:8", *MEAN),
    "cifar10_pixelcnn:16": ("v5e-16",),
}


@pytest.mark.timeout(1800)  # minutes each, and more beside other programs
@pytest.mark.parametrize("config", LARGE)
def test_a_large_config_at_full_size(config, tmp_path, check):
    target, *flags = LARGE[config]
    path, variant = config.split(":")
    workers = f"--config.num_workers={targets.find(target).num_devices}"
    needs = dry_run(tmp_path, target, f"--config={ROOT}/configs/{path}.py:{variant}", workers, *flags)
    check(f"large:{config}", target, needs)


def test_the_table_has_the_programs_of_these_tests():
    programs = {f"reducer:{name} {target}" for name in MAKERS for target in ("v5e:2x4", "h100:8")}
    programs |= {f"mode:{mode} {target}" for mode in MODES for target in (TPU, GPU)}
    programs |= {f"config:{config} {target}" for config, target in TARGETS.items()}
    programs |= {f"large:{config} {target}" for config, (target, *_) in LARGE.items()}
    assert set(table()) == programs
