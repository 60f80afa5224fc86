"""The benchmark of a GPU: its table, its rows, what it refuses, and small whole runs; no test looks at a time."""

import importlib.util
import math
import re

import jax
import pytest

from benchmarks import gpu
from benchmarks.kit import contenders, result, schedule, step_loop
from benchmarks.kit import gpu_parts as parts
from benchmarks.kit.contenders import Contender, Part, Row, Taken
from benchmarks.kit.result import Target
from benchmarks.twins import training
from tests import ROOT
from tests.refused import only_line_of

FULL = parts.make_parts("full", platform="gpu", memory=59.3 * contenders.GIB)
TINY = parts.make_parts("tiny", platform="cpu")


# ---- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [FULL, TINY], ids=["full", "tiny"])
def test_rows_are_of_contenders_of_their_part(chosen):
    names = [row.name for part in chosen.values() for row in part.rows]
    assert len(set(names)) == len(names)
    for part in chosen.values():
        own = [c.name for c in part.contenders]
        assert len(set(own)) == len(own)
        assert {name for row in part.rows for name in row.contenders} == set(own)


OURS = {
    (size, c.line): pytest.param(c, id=f"{size} {c.name}")
    for size, chosen in (("full", FULL), ("tiny", TINY))
    for part in chosen.values()
    for c in part.contenders
    if not c.packages
}


@pytest.mark.parametrize("contender", OURS.values())
def test_our_contenders_exist(contender):
    kind, config, updates, *overrides = contender.line.split()
    assert kind == "step" and int(updates.partition("/")[0]) >= 2
    setup = step_loop.load(config, overrides)
    assert contender.examples == setup.examples_per_step
    assert step_loop.made_up(setup.source.info, num_examples=4).train.num_examples == 4


@pytest.mark.parametrize("chosen", [FULL, TINY], ids=["full", "tiny"])
def test_contenders_of_pytorch_have_the_batch_of_ours(chosen):
    for part in chosen.values():
        for peer in (c for c in part.contenders if c.packages):
            given = training.parse(peer.line.split())
            assert given.batch == peer.examples == part.contenders[0].examples
            assert given.device == ("cuda" if chosen is FULL else "cpu")


# ---- rows --------------------------------------------------------------------------------------------------------


def test_the_manual_names_parts():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    only = [name for names in re.findall(r"--only=([\w,-]+)", page) for name in names.split(",")]
    rows = re.findall(r"^\| (`.*`) \| .* \|$", page.partition("| Part |")[2], re.MULTILINE)
    assert set(only) <= FULL.keys() and sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(FULL)


A = Contender("a", "step a 2", 8)
B = Contender("b", "step b 2", 2)
KNOWN = Taken(A, [1.0, 2.0], 3 * 2**30, 7.0)
UNKNOWN = Taken(B, [0.5, 4.0], math.nan, math.nan)


def test_values_of_rows():
    assert contenders.faster("", A, B).values(KNOWN, UNKNOWN) == [2.0, 8.0]
    assert contenders.peak("", A, None).values(KNOWN) == [3.0]
    assert contenders.compiling("", A).values(KNOWN) == [7.0]


def test_details_leave_out_what_is_not_known():
    known = contenders.details("x", KNOWN, examples="images")
    expected = [("ms", [1000.0, 2000.0]), ("images/s", [8.0, 4.0]), ("GiB", [3.0]), ("s", [7.0])]
    assert [(one.unit, one.values) for one in known] == expected
    assert [one.unit for one in contenders.details("x", UNKNOWN, examples="sequences")] == ["ms", "sequences/s"]


# ---- measuring ---------------------------------------------------------------------------------------------------

SMALL = "step digits:smoke 2/1 num_workers=2 batch_size_per_worker=4 model.hidden_sizes=(8,)"


def measure(chosen, **options):
    options = {"repeats": 2, "limit_seconds": 200.0, "log": print, **options}
    return {one.name: one for one in gpu.benchmark(parts=chosen, **options)}


def test_contenders_are_compiled_and_take_turns_and_failures_are_said():
    one = Contender("one", SMALL, 8)
    broken = Contender("broken", "step digits:smoke 2 num_workers=0", 8)
    peer = Contender("peer", "--model=lenet5 --batch=8 --device=cpu", 8, packages=("no_such_package",))
    slow = Row("too slow", ("one",), lambda a: a.seconds, Target("<=", 0), unit="s")
    faster = [contenders.faster("few", one, other) for other in (broken, peer)]
    rows = (slow, contenders.peak("", one, Target("<", 40)), *faster)
    found = measure({"few": Part((one, broken, peer), rows)})
    assert len(found["too slow"].values) == 2 and found["too slow"].verdict == "missed"
    reason = found["few, one over broken"].missing
    assert "num_workers" in reason and "\n" not in reason
    assert found["few, one over peer"].missing == "peer: no_such_package is not installed"
    is_known = bool(jax.devices()[0].memory_stats())
    peak = found["one, peak memory"]
    assert len(peak.values) == is_known and bool(peak.missing) != is_known
    assert len(found["few: one, step"].values) == 2
    assert len(found["few: one, trace to programs"].values) == 1
    assert not any(name.startswith(("few: broken", "few: peer")) for name in found)


@pytest.mark.parametrize(
    ("limit_seconds", "compiling", "reason"),
    [(1e-6, 0.6, "the limit of 1e-06 s was"), (200.0, 1e-8, "the limit of 2e-06 s for compiling was")],
)
def test_nothing_is_measured_beyond_the_limit(limit_seconds, compiling, reason, monkeypatch):
    monkeypatch.setattr(schedule, "_COMPILING", compiling)
    one = Contender("one", SMALL, 8)
    rows = (contenders.faster("", one, one), contenders.compiling("", one))
    found = measure({"turns": Part((one,), rows)}, limit_seconds=limit_seconds)
    assert len(found) == 2 and not any(one.values for one in found.values())
    assert all(one.missing.startswith(f"one: {reason} reached") for one in found.values())


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only=resnet18"], "only='resnet18': must be of resnet50, bert"),
        (["--repeats=0"], "repeats=0: must be 1 or more"),
        (["--limit_seconds=0"], "limit_seconds=0: must be above 0"),
        (["--json=/no/such/folder/x.json"], "json='/no/such/folder"),
        (["--json=/tmp/x.json"], "size='full': needs a GPU, JAX finds cpu; --size=tiny runs on any device"),
    ],
)
def test_refused_in_one_line(flags, message, capsys):
    if flags == ["--json=/tmp/x.json"] and jax.default_backend() != "cpu":
        pytest.skip("this machine has a GPU")
    assert gpu.main(flags) == 2
    assert message in only_line_of(capsys)


def test_a_whole_command(tmp_path, capsys):
    path = tmp_path / "gpu.json"
    assert gpu.main(["--size=tiny", "--only=lenet5", "--repeats=1", f"--json={path}"]) == 0
    environment, found = result.read(path)
    assert found[0].name == TINY["lenet5"].rows[0].name and len(found) > 3
    assert environment["devices"] == [device.device_kind for device in jax.devices()]
    has_peer = importlib.util.find_spec("torch") is not None
    assert all(one.values for one in found if has_peer or "PyTorch" not in one.name)
    assert capsys.readouterr().out.splitlines() == [result.in_words(one) for one in found]
