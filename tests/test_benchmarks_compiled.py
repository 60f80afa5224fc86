"""The benchmark of compiled programs: its rows, what it refuses, and that it goes on where it stopped."""

import os

import numpy as np
import pytest

import reducers
from benchmarks import compiled, nodes
from benchmarks.kit import command, leaves, report, result
from benchmarks.kit.result import Measured
from compilers.estimate import RejectedError
from reducers import targets
from reducers.encodings import ENCODINGS
from tests.refused import only_line_of

ENVIRONMENT = {"python": "3", "packages": {}, "devices": ["cpu"], "commit": "", "tree": "clean", "started": "2026"}


def have_compilers() -> bool:
    return targets.has_compiler("tpu") and targets.has_compiler("gpu")


COLUMNS = ("collectives", "in a chain", "kernels", "bytes through memory / D", "program, MB", "over the links, ms")


# ---- rows --------------------------------------------------------------------------------------------------------


def test_every_reducer_and_encoding_has_a_row_that_can_be_made():
    labels = compiled.labels()
    names = {label.partition(":")[0] for label in labels}
    assert names == set(reducers.REDUCERS) | set(ENCODINGS) - {"full"}  # which encodes nothing
    found = compiled.find_reducers(",".join(labels))
    assert [one.label.removeprefix("mean, ") for one in found] == labels
    for candidate in found:
        candidate.make(axis_name="worker")


def test_bert_large_has_the_leaves_of_its_config():
    found = leaves.FIXED["bert_large"]()
    assert len(found) == 398 and sum(leaf.size for leaf in found) == 336_232_258


def test_the_steps_are_those_that_a_gpu_has_measured():
    names = [row.name for row in compiled.steps()]
    measured = [name for name in names if compiled.measured(name.removeprefix("h100, "))]
    assert set(names) - set(measured) == {
        "h100, bert-adasum: 4 x 32 Adasum of LAMB's deltas",
        "h100:8, resnet50: 8 x 32 Adasum of updates",
        "v5e:2x4, resnet20: 16 x 16 mean",
    }
    for name in measured:
        assert set(compiled.measured(name.removeprefix("h100, "))) == {"step", "peak memory"}


def test_a_row_that_is_rejected_has_the_reason():
    def make(log):
        raise RejectedError("'v5e:4x4': its compiler says: no")

    found = compiled.Row("v5e:4x4, lenet5: mean", compiled.FIRST, compiled.LAST, make)
    (one,) = found.measure(print)
    assert (one.missing, one.column) == ("'v5e:4x4': its compiler says: no", compiled.FIRST)
    assert found.is_in({one.title: one})
    text = report.section("compiled", {**ENVIRONMENT, "cpu_count": 1}, [one, *counted("v5e:4x4, lenet5: sum", last=2)])
    assert "| v5e:4x4, lenet5: mean | 'v5e:4x4': its compiler says: no |  |" in text


def counted(name, *, first=1, last=2):
    return [Measured(name, [float(first)], column=compiled.FIRST), Measured(name, [float(last)], column=compiled.LAST)]


def row(name, made, **values):
    def make(log):
        made.append(name)
        return counted(name, **values)

    return compiled.Row(name, compiled.FIRST, compiled.LAST, make)


def test_a_killed_benchmark_goes_on_where_it_stopped(tmp_path, monkeypatch):
    made, path = [], tmp_path / "compiled.json"
    monkeypatch.setattr(result.environment, "describe", describe(tree="clean"))

    def run(names):
        rows = [row(name, made) for name in names]
        return command.run(
            compiled.benchmark,
            [f"--json={path}"],
            name="compiled",
            doc="",
            repeats=1,
            read_flags=lambda arguments: {"rows": rows},
            start="where it stopped",
        )

    assert run(["a"]) == 0 and made == ["a"]
    environment, found = result.read(path)
    half = [one for one in found if one.column == compiled.FIRST]
    result.write(
        "compiled", [*found, *(Measured("b", one.values, column=one.column) for one in half)], **at(path, environment)
    )
    assert run(["a", "b", "c"]) == 0
    assert made == ["a", "b", "c"]  # b had not been finished
    assert [one.name for one in result.read(path)[1]] == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize("changed", [{"tree": "dirty"}, {"commit": "another"}, {"packages": {"libtpu": "1"}}])
def test_what_other_code_or_another_compiler_gave_is_compiled_again(changed, tmp_path, monkeypatch):
    made, path = [], tmp_path / "compiled.json"
    monkeypatch.setattr(result.environment, "describe", describe(tree=changed.get("tree", "clean")))
    now = result.environment_of()
    result.write("compiled", counted("a"), **at(path, {**now, **changed}))
    options = {"name": "compiled", "doc": "", "repeats": 1, "start": "where it stopped"}
    rows = [row("a", made)]
    assert command.run(compiled.benchmark, [f"--json={path}"], read_flags=lambda _: {"rows": rows}, **options) == 0
    assert made == ["a"]


def at(path, environment):
    return {"environment": environment, "path": path}


def describe(*, tree):
    whole = result.environment.describe

    def described(**options):
        return {**whole(**options), "commit": "c", "tree": tree}

    return described


def test_the_page_has_a_table_of_reductions_and_one_of_steps():
    step = [Measured("h100, resnet50: mean", [38.1], column=compiled.FIRST_OF_STEP)]
    found = [*counted("h100:8, x: mean"), *step, *counted("v5p:4x4x4, x: mean")]
    text = report.section("compiled", {**ENVIRONMENT, "cpu_count": 1}, found)
    assert text.count("| What |") == 2 and text.index("v5p:4x4x4, x: mean") < text.index("h100, resnet50: mean")


def test_what_has_changed_is_said_of_counts_but_not_of_seconds(tmp_path):
    for folder, count, seconds in (("old", 4.0, 10.0), ("new", 5.0, 19.0)):
        (tmp_path / folder).mkdir()
        cells = [Measured("mean", [count], unit="", column="kernels")]
        cells.append(Measured("mean", [seconds], column="compiled in, s", tolerance=1.0))
        gone = Measured("krum", [1.0], column="kernels")
        gone = gone if folder == "old" else Measured("krum", [], missing="rejected", column="kernels")
        path = tmp_path / folder / "compiled.json"
        result.write("compiled", [*cells, gone], environment=result.environment_of(), path=path)
    lines = report.moved(["compiled"], new=tmp_path / "new", old=tmp_path / "old")
    assert lines == ["compiled: mean, kernels: 4 -> 5", "compiled: krum, kernels: 1 -> rejected x"]


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--only=step", "only='step': must be of reducers, steps, scale"),
        ("--leaves=vgg", "leaves='vgg': must be of lenet5, resnet50, bert_large"),
        ("--targets=h200:8", "targets='h200:8': must be of one of v4, v5e"),
        ("--targets=v5e:3x3", "targets='v5e:3x3': must be one of v5e:1x1"),
        ("--reducers=average", "reducers='average': name='average': unknown name"),
        ("--reducers=krum:num_byzantine=x", "num_byzantine='x': must be int"),
        ("--reducers=mean,quantised:bits=99", "reducers='quantised:bits=99': bits"),
    ],
)
def test_refused_before_anything_is_compiled(flag, message, tmp_path, capsys):
    path = tmp_path / "compiled.json"
    assert compiled.main([flag, f"--json={path}"]) == 2
    assert message in only_line_of(capsys) and not path.exists()


@pytest.mark.parametrize("only", ["reducers", "steps", "scale"])
def test_a_missing_compiler_is_one_line_with_the_command(only, capsys, monkeypatch):
    monkeypatch.setattr(targets, "has_compiler", lambda platform: False)
    assert compiled.main([f"--only={only}"]) == 2
    assert "pip install -r requirements-compilers.txt" in only_line_of(capsys)


needs_compilers = pytest.mark.skipif(
    not have_compilers() and os.environ.get("COMPILERS") != "required",
    reason="needs the compilers of TPUs and GPUs: requirements-compilers.txt",
)


@needs_compilers
def test_reducers_are_compiled_for_both_compilers(tmp_path):
    """The mean and the median send as much, over LeNet-5's leaves, and the mean takes one collective."""
    flags = ["--only=reducers", "--leaves=lenet5", "--reducers=mean,coordinate_median", "--targets=h100:2,v5e:2x2"]
    path = tmp_path / "compiled.json"
    assert compiled.main([*flags, f"--json={path}"]) == 0
    cells = {one.title: one for one in result.read(path)[1]}
    for target, num_devices in (("h100:2", 2), ("v5e:2x2", 4)):
        mean, median = (
            {column: cells[f"{target}, lenet5: {name}, {column}"] for column in COLUMNS}
            for name in ("mean", "coordinate_median")
        )
        assert mean["collectives"].median == mean["in a chain"].median == 1
        assert median["collectives"].median >= median["in a chain"].median >= 2  # slices there, medians back
        sent = 2 * (num_devices - 1) / num_devices * 4 * 1_663_370
        for one in (mean, median):
            assert one["kernels"].median >= 8  # leaves
            assert 2 <= one["bytes through memory / D"].median < 12  # they are read and written at least
            link = targets.find(target).kind.link
            assert one["over the links, ms"].median == pytest.approx(1e3 * sent / link, rel=0.05)
            assert bool(one["program, MB"].missing) == target.startswith("h100")


def test_nodes_refuse_unknown_cases(capsys):
    assert nodes.main(["--only=vgg"]) == 2
    assert "only='vgg': must be one of bert, lamb; bert, adam; transformer, diloco" in only_line_of(capsys)


@needs_compilers
@pytest.mark.parametrize("target", ["h100:8", "v5e:2x4"])
def test_parts_of_a_node_are_held_and_sent_as_the_formula_says(target):
    """Two nodes of four devices: the digits' MLP, with Adam and an average of its parameters."""
    overrides = (
        *("num_workers=2", "devices_per_worker=4", "batch_size_per_worker=16", "model.hidden_sizes=(1024, 1024)"),
        *("optimizer.name=adam", "optimizer.learning_rate=0.01"),
    )
    found = {}
    for partition in ("none", "state"):
        row = nodes.row("digits", nodes.Case("digits", overrides, (target,)), target, partition)
        found[partition] = {one.column: one.median for one in row.make(lambda line: None)}
    for cells in found.values():
        np.testing.assert_allclose(cells["sends, MB"], cells["by the formula, MB"], rtol=0.1)
    assert found["state"]["holds, GiB"] < 0.75 * found["none"]["holds, GiB"]  # parameters, average, 1/4 of two moments
