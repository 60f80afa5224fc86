"""Benchmarks of runs, steps and processes: the arithmetic, what they start, and a smallest whole run of each."""

import argparse
import contextlib
import functools
import math
import os

import jax
import numpy as np
import pytest

import models
from benchmarks import bare, encodings, processes, reducers
from benchmarks.kit import leaves, process_groups, reducer_times, step_loop, taking_turns
from benchmarks.kit.candidates import parse
from benchmarks.kit.leaves import plain
from benchmarks.kit.result import Measured
from benchmarks.twins import bare as twins_bare
from data.texts.tokenizers import CLS, SEP
from parallel import Layout
from tests.inputs import assert_of


def named(found):
    found = list(found)
    assert all(np.isfinite(one.values).all() and len(one.values) >= 1 for one in found), found
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


# ---- the loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [(), ("server.name=asynchronous", "arrivals.name=shifted_exponential")], ids=["together", "apart"]
)
def test_a_loop_takes_so_many_updates_a_turn(overrides):
    small = ("num_workers=4", "model.hidden_sizes=(8,)", "batch_size_per_worker=4")
    loop = step_loop.Loop(step_loop.load("digits", [*small, *overrides]), Layout.of(4, num_devices=2), num_updates=5)
    before = np.asarray(loop._state.params["Dense_0"]["kernel"])
    assert 0 < loop() < 60
    first = int(loop._state.step[0])
    assert 5 <= first < 5 + 4 and loop() > 0  # a wave is several
    assert first + 5 <= int(loop._state.step[0]) < first + 5 + 4
    assert np.abs(np.asarray(loop._state.params["Dense_0"]["kernel"]) - before).max() > 0


def test_made_up_images_are_of_a_sets_shape():
    info = step_loop.load("mnist", ()).source.info
    dataset = step_loop.made_up(info)
    columns = dataset.train.columns
    assert_of(columns, info.example)
    assert set(columns["label"]) == set(range(10)) and columns["image"].std() > 70
    assert {name: part.shape for name, part in dataset.constants.items()} == {"mean": (1,), "std": (1,)}


@pytest.mark.parametrize("form", ["masked", "causal"])
def test_made_up_sequences_are_of_a_sets_shape(form):
    text = ("data.name=text", "data.source=none/*.txt", f"data.form={form}", "data.sequence_length=16")
    model = {"masked": "bert_mini", "causal": "transformer"}[form]
    info = step_loop.load("digits", [*text, f"task.name={form}_lm", f"model.name={model}"]).source.info
    columns = step_loop.made_up(info, num_examples=50).train.columns
    assert_of(columns, info.example)
    tokens = columns["tokens"]
    assert tokens.max() < info.sizes["vocab_size"] and len(np.unique(tokens)) > 400
    if form == "causal":
        assert tokens.min() >= info.sizes["num_special"]
        return
    assert (tokens[:, 0] == CLS).all() and ((tokens == SEP).sum(axis=1) == 2).all()
    assert ((columns["words"] == -1) == (tokens < info.sizes["num_special"])).all()
    assert (columns["words"].max(axis=1) == 12).sum() > 45  # but for segments at the end, without padding
    assert set(columns["segments"].ravel()) == set(columns["is_next"]) == {0, 1}


# ---- processes that take turns -----------------------------------------------------------------------------------


def test_lines_name_contenders():
    reduction = process_groups.make("reduce plain:100 adasum:algorithm=gram", num_devices=4)
    assert reduction() > 0
    loop = process_groups.make("step digits 2 num_workers=2 model.hidden_sizes=(8,)", num_devices=2)
    assert loop() > 0 and int(loop._state.step[0]) == 2
    several = process_groups.make("step digits 4/2 num_workers=2 model.hidden_sizes=(8,)", num_devices=2)
    assert several() > 0 and int(several._state.step[0]) == 4
    with pytest.raises(ValueError, match="'sleep 3': must be step or reduce"):
        process_groups.make("sleep 3", num_devices=2)


def test_lines_ask_for_more_than_turns():
    made = functools.cache(functools.partial(process_groups.make, num_devices=1))
    line = "step digits 2 num_workers=2 model.hidden_sizes=(8,)"
    assert process_groups.answer(f"compile {line}", made=made) > 0
    assert int(made(line)._state.step[0]) == 0
    assert process_groups.answer(line, made=made) > 0 and int(made(line)._state.step[0]) == 2
    known = jax.local_devices()[0].memory_stats()
    assert math.isnan(process_groups.answer("peak", made=made)) == (not known)


def test_another_process_finds_the_programs_that_were_compiled_ahead(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **taking_turns.keeping_programs(tmp_path)}
    line = "step digits 4/2 num_workers=2 model.hidden_sizes=(8,)"
    kept = []
    for asked in (f"compile {line}", line):
        arguments = ("-m", "benchmarks.kit.process_groups", "localhost:1", "1", "0", "1")
        with process_groups.Child(*arguments, environment=environment) as child:
            assert child(asked) > 0
        kept.append({path.name for path in tmp_path.glob("*-cache")})
    assert kept[0] and kept[0] == kept[1]


def test_a_turn_of_a_group_is_the_slowest_childs(monkeypatch):
    asked, seconds = [], iter([1.0, 3.0, 2.0])

    @contextlib.contextmanager
    def started(*arguments, environment):
        taken = next(seconds)
        yield lambda line: asked.append(line) or taken

    monkeypatch.setattr(process_groups, "Child", started)
    with process_groups.group(num_processes=3) as turn_of:
        assert turn_of("step x")() == 3.0 and asked == ["step x"] * 3


def test_a_reducer_that_is_not_compiled_reduces_the_same():
    layout = Layout.of(4, num_devices=2)
    reduce, state = reducer_times.lift_reducer(parse("mean"), plain(8), layout)
    given = np.arange(32, dtype=np.float32).reshape(4, 8)
    (mean,), _ = reduce([layout.put_per_worker(given)], state)
    np.testing.assert_allclose(layout.get_shared(mean), given.mean(0))


def test_a_group_of_two_processes():
    with process_groups.group(num_processes=2, num_devices=2) as turn_of:
        mean, adasum = (turn_of(f"reduce plain:1000 {name}") for name in ("mean", "adasum"))
        step = turn_of("step digits 3 num_workers=2 model.hidden_sizes=(8,)")
        assert all(turn() > 0 for turn in (mean, adasum, step, adasum, mean, step))
        with pytest.raises(RuntimeError, match=r"benchmarks\.kit\.process_groups .*: ended with code"):
            turn_of("sleep 3")()


# ---- whole runs --------------------------------------------------------------------------------------------------


def test_bare():
    small = [bare.Case("MLP", "digits", 8)]
    found = named(bare.benchmark(repeats=1, log=print, cases=small, sizes=((1, 1), (8, 4))))
    assert [one.unit for one in found.values()] == 2 * ["x", "s", "s"]
    for ratio, ours, other in zip(*3 * [iter(found.values())], strict=True):
        assert ratio.median == pytest.approx(ours.median / other.median)


def test_a_bare_loop_is_the_same_on_one_device_and_on_several():
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(512, 4, 4, 1), dtype=np.uint8)
    labels = rng.integers(3, size=512, dtype=np.int32)
    network = models.MODELS["mlp"](hidden_sizes=(8,), dropout_rate=0.2, num_classes=3)
    params = []
    for num_devices, size in ((1, 1), (1, 8), (4, 1), (4, 8)):
        sizes = {"batch": (4, 8), "num_devices": num_devices, "num_updates": 8, "steps_per_call": size}
        loop = twins_bare.Loop(network, images, labels, **sizes)
        assert loop() > 0
        found = jax.device_get(loop.state[0])
        params.append(found if num_devices == 1 else jax.tree.map(lambda x: x[0], found))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), params[-1], params[0])


def test_processes():
    found = named(processes.benchmark(repeats=1, log=print, num_floats=20_000, counts=(1, 2)))
    assert [name.partition(",")[0] for name in found][:2] == ["mean", "adasum (gram) over mean"]
    assert len(found) == 9


def test_published_reducers(monkeypatch):
    monkeypatch.setattr(leaves, "sets", lambda names, *, sizes: [("little", plain(20_000))])
    options = reducers.read_flags(argparse.Namespace(published=True))
    found = named(reducers.benchmark(repeats=1, log=print, **options))
    for name, target in reducers.PUBLISHED.items():
        assert found[f"{name} over mean, 8 devices, little"].target == target
    assert found["adasum:algorithm=gather sends, 8 devices, little"].median == pytest.approx(7)
    assert len(found) == 2 * len(reducers.PUBLISHED) + 2


def test_encodings():
    cases = {name: encodings.CASES[name] for name in ("quantised to 4 bits", "top_k of 1 %", "low_rank of rank 4")}
    small = {"leaves_of_bytes": "plain", "leaves_of_times": "plain", "num_floats": 20_000}
    measured = encodings.benchmark(repeats=1, log=print, cases=cases, **small)
    found = named(one for one in measured if "pays on" not in one.name or not one.missing)
    assert found["quantised to 4 bits, bytes over mean, plain, 8 workers"].verdict == "met"
    for name in cases:
        assert len(found[f"{name}, time over mean, 8 devices, 0.02 M floats in one leaf"].values) == 1


def test_an_encoding_pays_below_the_speed_at_which_what_it_saves_takes_as_long(monkeypatch):
    rows = {"half, time over mean": 3.0, "half, time sends": 0.875, "mean": 0.5}
    found = [Measured(f"{name}, 8 devices, 1 M floats in one leaf", [value]) for name, value in rows.items()]
    monkeypatch.setattr(encodings, "measure", lambda *_, **__: found)
    small = {"leaves_of_bytes": "plain", "leaves_of_times": "plain", "num_floats": 10**6}
    *_, link = encodings.benchmark(repeats=1, log=print, cases={"half": encodings.CASES["half"]}, **small)
    assert link.median == pytest.approx(8e-6 * 4e6 * 0.875 / 1.0)  # 3.5 MB saved in (3 - 1) * 0.5 s
