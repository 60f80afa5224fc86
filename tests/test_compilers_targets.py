"""Devices that are only described: their names, what is refused, and that their compilers change nothing else."""

import json
import re

import jax
import pytest

from reducers import targets
from tests import ROOT
from tests.in_process import DIGITS, train_py
from tests.started import python

# ---- names -------------------------------------------------------------------------------------------------------

NAMES = {  # name -> platform, shape, devices, hosts
    "v5e:1x1": ("tpu", "1x1", 1, 1),
    "v5e:2x4": ("tpu", "2x4", 8, 2),
    "v5e-16": ("tpu", "4x4", 16, 4),
    "V5E-16": ("tpu", "4x4", 16, 4),
    "v6e-256": ("tpu", "16x16", 256, 64),
    "v5p:4x4x4": ("tpu", "4x4x4", 64, 16),
    "v5p-128": ("tpu", "4x4x4", 64, 16),
    "v4-8": ("tpu", "2x2x1", 4, 1),
    "h100": ("gpu", "1x1", 1, 1),
    "h100:8": ("gpu", "1x8", 8, 1),
    "a100:2x8": ("gpu", "2x8", 16, 2),
    "h100:8x8": ("gpu", "8x8", 64, 8),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    found = targets.find(name)
    assert (found.kind.platform, found.shape, found.num_devices, found.num_hosts) == NAMES[name]
    assert found.name == name


TPUS = [name for name, kind in targets.KINDS.items() if kind.platform == "tpu"]
SHAPES = [f"{name}:{shape}" for name in TPUS for shape in targets.KINDS[name].shapes]
HOSTS = [f"{name}{more}" for name in targets.KINDS if name not in TPUS for more in ("", ":8", ":2x8", ":8x8")]


@pytest.mark.parametrize("name", SHAPES)
def test_the_name_that_clouds_use_is_of_as_many_chips(name):
    slice_of = targets.find(name)
    cores = slice_of.kind.cores * slice_of.num_devices
    by_cloud = targets.find(f"{name.partition(':')[0]}-{cores}")
    assert (by_cloud.shape, by_cloud.num_devices) == (slice_of.shape, slice_of.num_devices)


KINDS = "must be of one of v4, v5e, v5p, v6e, a100, h100"
NO_NAMES = {  # name -> what its line says is allowed
    "": KINDS,
    "v5": KINDS,
    "h200:8": KINDS,
    "v5e:": KINDS,
    "v5e 4x4": KINDS,
    "v5e:4x4\n": KINDS,
    "h100:eight": KINDS,
    "h100:-8": KINDS,
    "v5e": "v5e:2x2",
    "v5e:3x3": "v5e:2x4",
    "v5e:4x4x4": "v5e:16x16, or v5e-1 v5e-4 v5e-8",
    "v5e:16": "v5e-16",
    "v5e-4x4": "v5e:4x4",
    "v5e-12": "v5e-16",
    "v5p:4x4": "v5p:2x2x2",
    "v5p-4": "v5p-8 v5p-16",
    "v4-16x": "v4-16",
    "h100-8": "h100:8",
    "h100:0": "h100:8",
    "h100:2x": "h100:2x8 for two hosts of eight",
    "h100:x8": "h100:2x8",
    "h100:2x0": "h100:2x8",
    "h100:2x8x1": "h100:2x8",
    "a100:1025": "a100:8",
}


@pytest.mark.parametrize("name", NO_NAMES)
def test_another_name_is_refused_with_what_is_allowed(name):
    with pytest.raises(ValueError) as refusal:
        targets.find(name)
    line = str(refusal.value)
    assert line.startswith(f"{name!r}: ") and NO_NAMES[name] in line and "\n" not in line


def test_numbers_of_a_kind_are_those_of_its_sheet():
    for kind in targets.KINDS.values():
        assert 1e9 < kind.memory < 1e12 and 1e11 < kind.bandwidth < 1e13 and 1e13 < kind.flops < 1e16
        assert 1e10 < kind.link <= kind.bandwidth and kind.network > 1e9 and kind.sources


# ---- outside and inside of compiling() ---------------------------------------------------------------------------


def assert_of_this_machine():
    assert targets.current() is None
    assert (targets.platform(), targets.num_processes()) == ("cpu", 1)
    assert targets.device_kind() == jax.devices()[0].device_kind


def test_outside_the_devices_are_those_of_this_machine():
    assert_of_this_machine()


@pytest.mark.parametrize(("name", "package"), [("v5e-4", "libtpu"), ("h100", "plugin for CUDA")])
def test_a_compiler_that_is_not_installed_is_one_line(name, package, monkeypatch):
    monkeypatch.setattr(targets, "has_compiler", lambda platform: False)
    with (
        pytest.raises(ValueError, match=f"^'{name}': needs .*{package}: .*requirements-compilers.txt"),
        targets.find(name).compiling(),
    ):
        pass
    assert_of_this_machine()


@pytest.mark.compilers
@pytest.mark.parametrize("name", [*SHAPES, *HOSTS])
def test_inside_they_are_those_of_the_target(name):
    target = targets.find(name)
    with target.compiling() as devices:
        assert len(devices) == target.num_devices
        assert len({device.process_index for device in devices}) == target.num_hosts == targets.num_processes()
        assert {device.platform for device in devices} <= {"tpu", "cuda", "gpu"}
        assert {device.device_kind for device in devices} == {targets.device_kind()}
        assert targets.platform() == target.kind.platform and targets.current() is target
    assert_of_this_machine()


@pytest.mark.compilers
def test_one_inside_another_and_errors():
    outer, inner = targets.find("v5e-4"), targets.find("h100:2")
    with pytest.raises(KeyError), outer.compiling():
        with inner.compiling():
            assert targets.current() is inner
        assert targets.current() is outer
        raise KeyError
    assert_of_this_machine()


# ---- train.py ----------------------------------------------------------------------------------------------------

DRY = "--dry_run --dry_run_target"
REFUSED = {  # flags -> what the line must name
    f"{DRY}=v7:2x2": f"dry_run_target='v7:2x2': {KINDS}",
    f"{DRY}=v5e:5x5": "dry_run_target='v5e:5x5': must be one of v5e:1x1 v5e:2x2",
    f"{DRY}=h100-8": "dry_run_target='h100-8': must be h100, h100:8",
    f"{DRY}=v5e-16": "dry_run_target='v5e-16': has 16 devices, which must divide config.num_workers=8",
    f"{DRY}=h100:3": "dry_run_target='h100:3': has 3 devices",
    f"{DRY}=h100:2 --num_devices=2": "num_devices",
    f"{DRY}=h100:2 --dry_run_json={{tmp}}": "dry_run_json='{tmp}': must be a file in a folder that exists",
    f"{DRY}=h100:2 --dry_run_program={{tmp}}/nope/one.txt": "dry_run_program='{tmp}/nope/one.txt': must be a file",
    f"{DRY}=h100:2 --dry_run_json=/proc/sys/kernel/one.json": "must be a file that can be written",  # nor by root
    "--dry_run_target=h100:2": "dry_run_target",
    "--dry_run --dry_run_json={tmp}/one.json": "dry_run_json",
    "--dry_run --dry_run_program={tmp}/one.txt": "dry_run_program",
}


def assert_refused(flags, said, capsys):
    assert train_py(f"--config={DIGITS}", *flags.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
    assert said in captured.err


@pytest.mark.parametrize("flags", REFUSED)
def test_train_py_refuses_in_one_line(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(targets, "has_compiler", lambda platform: True)
    assert_refused(flags.format(tmp=tmp_path), REFUSED[flags].format(tmp=tmp_path), capsys)
    assert not list(tmp_path.iterdir())


def test_train_py_names_the_command_that_installs_a_compiler(monkeypatch, capsys):
    monkeypatch.setattr(targets, "has_compiler", lambda platform: False)
    said = "dry_run_target='v5e-8': needs libtpu: python -m pip install -r requirements-compilers.txt"
    assert_refused(f"{DRY}=v5e-8", said, capsys)


@pytest.mark.compilers
@pytest.mark.parametrize(  # a TPU keeps the gradients of so small a model on the chip, and copies are dearest
    ("name", "sources"), [("v5e-4", r"."), ("h100:4", r"\(reducers/[\w/]+\.py:\d+\)")]
)
def test_a_dry_run_prints_and_writes_what_a_target_needs(name, sources, tmp_path, capsys):
    files = [f"--dry_run_program={tmp_path}/one.txt", f"--dry_run_json={tmp_path}/one.json"]
    flags = f"--config={DIGITS}", "--config.reducer.name=adasum", "--dry_run", f"--dry_run_target={name}"
    assert train_py(*flags, *files) == 0
    said = capsys.readouterr()
    assert f"compiled for {name}, per device" in said.out and "dearest kernels" in said.out
    assert all(line.startswith("dry run: ") for line in said.err.splitlines())
    assert (tmp_path / "one.txt").read_text().startswith("HloModule")
    written = json.loads((tmp_path / "one.json").read_text())
    assert written["target"] == name and written["devices"] == 4
    (needs,) = written["programs"].values()
    assert needs["collectives"] and needs["flops"] > 0 and needs["least_seconds"] > 0
    assert needs["total_bytes"] < targets.find(name).kind.memory
    assert 0 < needs["reduction"] < 1 and len(needs["dearest"]) == 10
    assert any(re.search(sources, kernel["source"]) for kernel in needs["dearest"])


@pytest.mark.compilers
@pytest.mark.parametrize("platforms", [{}, {"JAX_PLATFORMS": "cpu"}], ids=str)
def test_a_run_on_the_cpu_prints_nothing_of_the_compilers(platforms, tmp_path):
    flags = f"--config={DIGITS}:smoke", f"--workdir={tmp_path}/run"
    done = python(ROOT / "train.py", *flags, cwd=tmp_path, without=("JAX_PLATFORMS",), **platforms)
    assert done.returncode == 0, done.stderr
    assert [re.match(r"step \d/4  (test )?loss ", line) is not None for line in done.stderr.splitlines()] == [True] * 4
    assert done.stdout.startswith("\ndigits, mlp: 8 workers") and "accuracy" in done.stdout
