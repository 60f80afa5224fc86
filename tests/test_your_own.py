"""Components outside of the repository: the file of docs/your_own.md, names that are refused, code that changes."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys

import jax
import numpy as np
import pytest

import runs
from configs import config_file, dependencies, flags
from experiments import __main__ as experiments
from experiments.execution import results
from experiments.plots import timelines
from experiments.sweeps import sweep
from models import MODELS
from runs.errors import ConfigError
from runs.reporting import done
from tests import ROOT
from tests.in_process import keys, train_py
from tests.refused import only_line_of
from tests.stepper import after_each_call, checkpoint_of, end_and_go_on, records
from tests.test_docs import FILES, run_python
from training.setup import make_setup

SHORT = keys("num_workers=4 model.depth=1 data.num_train=256")
FORTY = (*SHORT, *keys("train_steps=40 eval_every_steps=20 checkpoint_every_steps=20"))


@pytest.fixture(autouse=True)
def forgotten():
    """Leaves no module of a reader's behind: the next config takes the place of theirs."""
    yield
    config_file.execute(f"{ROOT}/configs/digits.py")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder outside of the repository with the file of the document; the working folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(FILES["mine.py"])
    monkeypatch.chdir(folder)
    return folder


def command(*arguments: str) -> int:
    return train_py("--config=mine.py", *arguments)


def refused(capsys, *arguments: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert command(*arguments) == 2
    return only_line_of(capsys)


def edit(file: pathlib.Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# ---- the file of the document ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of the document's file, which is in the same folder as the run's."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(FILES["mine.py"])
    assert train_py(f"--config={folder}/mine.py", *FORTY, f"--workdir={folder}/run") == 0
    return folder


def test_it_learns_and_records_what_its_reducer_sends(finished):
    last = records(finished / "run", "eval")[-1]
    assert last["accuracy"] > 0.6  # one in four by guessing
    state = checkpoint_of(finished / "run", setup_of(finished))[1]["state"]
    sizes = [leaf.size for leaf in jax.tree.leaves(state.params)]
    assert last["bytes_per_worker"] == 8 * 3 * sum(max(1, round(0.1 * size)) for size in sizes)


def setup_of(folder):
    return make_setup(flags.load(f"{folder}/mine.py", FORTY))


def test_it_is_stopped_and_resumed_bit_for_bit(finished, mine):
    end_and_go_on(7, lambda: command(*FORTY, "--workdir=run"))
    setup = setup_of(mine)
    whole, resumed = (checkpoint_of(folder / "run", setup) for folder in (finished, mine))
    assert whole[0] == resumed[0] == 40
    jax.tree.map(np.testing.assert_array_equal, resumed[1], whole[1])
    residual = jax.tree.leaves(whole[1]["state"].reducer_state.residual)
    assert any(np.any(leaf[0] != leaf[1]) for leaf in residual), "each worker has its own"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model.name=mine:Vit", "config.model.name='mine:Vit': mine has no 'Vit'; did you mean 'ViT'?"),
        ("model.name=mien:ViT", "no module 'mien' beside the config or on PYTHONPATH; did you mean 'mine'?"),
        ("model.name=no_such_lab.x:ViT", "no module 'no_such_lab.x'"),
        ("model.name=mine:np", "must be a function or a class, not module"),
        ("model.name=mine.ViT", "config.model.name='mine.ViT': unknown name; did you mean 'mine:ViT'?"),
        ("model.patch=4", "config.model.patch: unknown key; did you mean 'patch_size'?"),
        ("model.patch_size=0", "config.model.patch_size=0: must be int in [1, inf)"),
        ("model.num_classes=4", "config.model.num_classes: unknown key"),
        ("data.noise=-1", "config.data.noise=-1.0: must be float in [0, inf)"),
        ("data.evaluate_on=tset", "one of 'test', 'validation'"),
        ("task.gamma=0.5", "config.task.gamma=0.5"),
        ("reducer.share=2", "config.reducer.share=2.0: must be float in (0, 1]"),
        ("reducer.name=mine:topk", "did you mean 'top_k'?"),
        ("reducer.axis_name=x", "config.reducer.axis_name: unknown key"),
        ("optimizer.learning_rate=0", "config.optimizer.learning_rate=0.0: must be float in (0, inf)"),
        ("optimizer.name=mine:top_k", "config.optimizer.name='mine:top_k': must have a parameter learning_rate"),
        ("accumulation.name=mine:ViT", "allowed: local_steps, micro_batches"),
        ("data.name=mine:sweep", "config.data.name='mine:sweep': must return a Source, not list"),
        # raised by the model itself, while its shapes are found
        (
            "model.patch_size=3",
            "config.model.patch_size=3: must divide the 16 x 16 pixels of an image (.*mine.py:\\d+)",
        ),
    ],
)
def test_it_is_refused_in_one_line(flag, said, mine, capsys):
    line = refused(capsys, f"--config.{flag}")
    assert re.search(re.escape(said).replace(r"\.\*", ".*").replace(r"\\d\+", r"\d+"), line), line
    assert [path.name for path in mine.iterdir()] == ["mine.py"]


def test_a_reducer_of_ones_own_inside_another(mine, capsys):
    stale = keys("reducer.name=stale reducer.delay_steps=1")
    inner = "--config.reducer.combine={'name': 'mine:top_k', 'share': 0.5}"
    setup = make_setup(flags.load("mine.py", [*stale, inner]))
    assert setup.worker_shapes.reducer_state.combine.residual
    assert dependencies.describe(setup.config).keys() == {"mine"}
    line = refused(capsys, *stale, inner.replace("share", "shar"))
    assert line.startswith("config.reducer.combine.shar: unknown key; did you mean 'share'?")


OTHERS = """
import optax
from jax import numpy as jnp
from asynchronous import Server
from asynchronous.rules import Rule
from reducers import DynamicScale

def factor(*, total_steps, steps_per_epoch, low: float = 0.5):
    return lambda step: low + 0.0 * step / (total_steps * steps_per_epoch)

def seconds(*, each: float = 2.0):
    return lambda key, step, num_workers: jnp.full(num_workers, each)

def doubled(reducer, *, axis_name):
    def update(updates, state, params=None, **more):
        return reducer.update(optax.tree.scale(2.0, updates), state, params, **more)
    return reducer.like(reducer.init, update)

def scale(*, initial: float = 8.0):
    return DynamicScale(initial, 10, 2.0, 0.5)

def halved(*, by: float = 0.5):
    return Rule(optax.init_empty_state, lambda g, state, **more: (g, by, state), "any")

def pairs(*, each: int = 2):
    return Server(halved(), each, None)
"""


AT_ONCE = "arrivals.name=constant reducer.name=mean"


@pytest.mark.parametrize(
    ("flags_of_it", "holds"),
    [
        ("schedule.name=others:factor", lambda setup: setup.learning_rate(3) == 0.0015),
        ("arrivals.name=others:seconds", lambda setup: setup.arrival_seconds(0).tolist() == [2.0] * 8),
        (
            "arrivals.name=slow_workers arrivals.base=others:seconds arrivals.factor=3",
            lambda setup: setup.arrival_seconds(0).tolist() == [6.0, *[2.0] * 7],
        ),
        ("communication.name=others:doubled", lambda setup: setup.worker_shapes.reducer_state.residual),
        ("loss_scaling.name=others:scale", lambda setup: setup.loss_scale.initial_scale == 8.0),
        (f"server.name=others:pairs {AT_ONCE}", lambda setup: setup.mode.gradients_per_update == 2),
        (f"server.name=asynchronous server.rule=others:halved {AT_ONCE}", lambda setup: setup.mode.options.rule),
    ],
)
def test_every_other_block_takes_a_component(flags_of_it, holds, mine):
    (mine / "others.py").write_text(OTHERS)
    setup = make_setup(flags.load("mine.py", keys(flags_of_it)))
    assert holds(setup)
    assert dependencies.describe(setup.config).keys() == {"mine", "others"}


def test_a_rule_of_rates_is_refused_where_a_built_in_one_is(mine):
    (mine / "others.py").write_text(OTHERS)
    free = "optimizer.name=schedule_free_sgd optimizer.learning_rate=0.1"
    config = flags.load("mine.py", keys(f"server.name=asynchronous server.rule=others:halved {AT_ONCE} {free}"))
    with pytest.raises(ConfigError, match=r"config\.server\.rule='others:halved': .*needs a rule that does not change"):
        make_setup(config)


def test_its_smallest_variant_keeps_its_data(mine):
    config = flags.load("mine.py:smoke")
    assert config.data.name == "mine:stripes" and config.train_steps == 4


def test_the_data_hold_out_a_part(mine):
    setup = make_setup(flags.load("mine.py", keys("data.evaluate_on=validation data.num_train=100")))
    dataset = setup.source.load(0)
    assert (dataset.train.num_examples, dataset.test.num_examples) == (90, 10)


def test_a_sweep_from_a_folder_outside_of_the_repository(mine):
    given = ("--config=mine.py:smoke", "--set=model.depth=1", "--out=results")
    done = run_python("-m", "experiments", "sweep", *given, cwd=mine, more=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "| 0.01 |" in done.stdout
    assert "| 0.1 |" in done.stdout
    assert "All runs have model.depth=1." in done.stdout
    edit(mine / "mine.py", "nn.relu", "nn.tanh")
    done = run_python("-m", "experiments", "sweep", *given, cwd=mine, more=str(ROOT))
    assert done.returncode == 2
    assert "mine.py changed" in done.stderr
    assert "--accept_code_change" in done.stderr


# ---- code that changes -------------------------------------------------------------------------------------------


def starts(workdir):
    return json.loads((workdir / "env.json").read_text())["starts"]


@pytest.fixture
def changed(finished, mine):
    """The finished run and its file, in which one activation has become another."""
    shutil.copytree(finished / "run", mine / "run")
    edit(mine / "mine.py", "nn.relu", "nn.tanh")
    return mine / "run"


ASKED = (*FORTY, "--workdir=run")


def test_a_finished_run_of_other_code_is_not_its_result(changed, capsys):
    before = {path: path.read_bytes() for path in changed.rglob("*") if path.is_file()}
    for more in ((), ("--evaluate_only",)):
        line = refused(capsys, *ASKED, *more)
        assert line.startswith("workdir='run': mine.py changed")
        assert "--fresh" in line and "--accept_code_change" in line
    assert {path: path.read_bytes() for path in changed.rglob("*") if path.is_file()} == before
    # The same code in another place is the same code, and so is code that was changed back.
    edit(changed.parent / "mine.py", "nn.tanh", "nn.relu")
    assert command(*ASKED) == 0 and "finished before" in capsys.readouterr().err
    edit(changed.parent / "mine.py", "nn.relu(", "nn.relu(  # a comment counts\n")
    assert "mine.py changed" in refused(capsys, *ASKED)


def test_a_change_that_is_accepted_is_recorded(changed, capsys):
    assert command(*ASKED, "--accept_code_change") == 0
    assert "mine.py changed" in capsys.readouterr().err
    first, *_, last = starts(changed)
    assert first["code"]["mine"]["sha256"] != last["code"]["mine"]["sha256"]
    assert last["code"]["mine"]["path"] == str(changed.parent / "mine.py")
    assert first["config"] == last["config"] == runs.fingerprint(json.loads((changed / "config.json").read_text()))
    assert command(*ASKED) == 0  # it was accepted once


def test_data_may_have_one_split_alone(mine, capsys):
    edit(mine / "mine.py", '    evaluate_on: EvaluateOn = "test",\n', "")
    edit(mine / "mine.py", ", evaluate_on=evaluate_on)", ', evaluate_on="test")')
    steps = keys("train_steps=2 eval_every_steps=2 checkpoint_every_steps=2")
    assert command(*SHORT, *steps, "--workdir=run") == 0
    said = capsys.readouterr()
    assert "step 2/2  test loss" in said.err and "test accuracy" in said.out


def test_other_code_evaluates_only_when_it_is_asked_to(changed, capsys):
    assert command(*ASKED, "--evaluate_only", "--accept_code_change") == 0
    assert "step 40: test accuracy" in capsys.readouterr().out
    assert len(starts(changed)) == 1


def test_a_run_that_was_stopped_is_refused_and_fresh_begins_anew(mine, monkeypatch, capsys):
    after_each_call(monkeypatch, lambda state, num_steps: signal.raise_signal(signal.SIGTERM))
    assert command(*ASKED) == 128 + signal.SIGTERM
    edit(mine / "mine.py", "nn.relu", "nn.tanh")
    assert "mine.py changed" in refused(capsys, *ASKED)
    assert command(*ASKED, "--fresh") == 128 + signal.SIGTERM
    assert starts(mine / "run" / "fresh-1")[0]["code"] != starts(mine / "run")[0]["code"]


@pytest.mark.parametrize("damage", [3, {"mine": 3}, {"mine": {"sha256": 3}}])
def test_damaged_hashes_are_refused(damage, changed, capsys):
    env = json.loads((changed / "env.json").read_text())
    env["starts"][0]["code"] = damage
    (changed / "env.json").write_text(json.dumps(env))
    assert "env.json is damaged (code=" in refused(capsys, *ASKED)


def test_a_sweep_mixes_no_results_of_different_code(finished, mine, capsys):
    """The runs are finished in this process, so that the sweep starts no process of its own."""
    points = [{"reducer.share": share} for share in (0.1, 0.2)]
    options = ["--set=train_steps=40", *(f"--set={flag.removeprefix('--config.')}" for flag in FORTY[:3])]
    arguments = ["sweep", "--config=mine.py", *options, "--out=results", "--grid=reducer.share=0.1,0.2"]
    fixed = {"train_steps": 40, "num_workers": 4, "model.depth": 1, "data.num_train": 256}
    found = sweep.Sweep(spec="mine.py", fixed=fixed, points=points)
    root = mine / "results" / found.name
    for run in found.runs:
        folder = results.folder_of(run, root)
        shutil.copytree(finished / "run", folder)
        summary = done.read(folder)
        (folder / "config.json").write_bytes(runs.files.to_json(runs.identity.plain(run.config)))
        (folder / done.NAME).write_bytes(done.content(folder, summary))
    assert experiments.main(arguments) == 0
    table = capsys.readouterr().out
    edit(mine / "mine.py", "nn.relu", "nn.tanh")
    assert experiments.main(arguments) == 2
    assert "mine.py changed" in only_line_of(capsys)
    assert experiments.main([*arguments, "--accept_code_change"]) == 0
    assert capsys.readouterr().out == table
    assert experiments.main(arguments) == 0


def test_a_plot_executes_nothing_that_a_run_names():
    config = {"arrivals": {"name": "os:system", "command": "touch executed"}, "seed": 0, "num_workers": 2}
    with pytest.raises(ValueError, match="'os:system' in its config"):
        timelines.of_run([], config, first_step=1, last_step=2)


# ---- which files are a component's code --------------------------------------------------------------------------

MODEL = """
from flax import linen as nn
{imports}

class Model(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        return nn.Dense(self.num_classes)(image.reshape(image.shape[0], -1))
"""
DIGITS = (ROOT / "configs/digits.py").read_text()


def write(folder: pathlib.Path, nested: dict[str, str] | None = None, **files: str) -> pathlib.Path:
    for name, text in (files | (nested or {})).items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def code_of(folder: pathlib.Path, name: str) -> dict[str, str]:
    config = flags.load(f"{folder}/config.py", [f"--config.model.name={name}"])
    return {module: file["sha256"] for module, file in dependencies.describe(config).items()}


def test_code_is_every_module_of_ones_own_that_is_loaded(tmp_path):
    imports = "import importlib, json\nparts = importlib.import_module('lab.parts')"
    lab = {
        "lab/__init__": "from lab import above",
        "lab/above": "",
        "lab/models/vit": MODEL.format(imports=imports),
        "lab/parts": "from helper import *\nimport optax",
        "lab/unused": "",
    }
    write(tmp_path, lab, config=DIGITS, helper="x = 1")
    before = code_of(tmp_path, "lab.models.vit:Model")
    assert before.keys() == {"lab.models.vit", "lab", "lab.above", "lab.parts", "helper"}
    write(tmp_path, {"lab/unused": "y = 1"}, helper="x = 1  # a comment counts")
    after = code_of(tmp_path, "lab.models.vit:Model")
    assert {name for name in after if before[name] != after[name]} == {"helper"}


def test_code_on_the_python_path_is_code_of_ones_own(tmp_path, monkeypatch):
    write(tmp_path / "configs", config=DIGITS, vit=MODEL.format(imports="import lab.parts, data.sources"))
    write(tmp_path / "src", {"lab/__init__": "", "lab/parts": "x = 1"})
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'src'}{os.pathsep}{ROOT}")
    try:
        assert code_of(tmp_path / "configs", "vit:Model").keys() == {"vit", "lab", "lab.parts"}
    finally:
        for name in ("lab", "lab.parts"):
            sys.modules.pop(name, None)


def test_a_neighbour_that_changes_is_imported_anew(tmp_path):
    write(tmp_path, config=DIGITS, vit=MODEL.format(imports="from helper import x"), helper="x = 1")
    assert code_of(tmp_path, "vit:Model") and sys.modules["vit"].x == 1
    write(tmp_path, helper="x = 22")
    assert code_of(tmp_path, "vit:Model") and sys.modules["vit"].x == 22


def test_a_config_that_changes_within_a_second_is_executed_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for seed in (1, 2):
        write(tmp_path, config=DIGITS.replace("num_workers=8", f"num_workers={seed}"))
        os.utime(tmp_path / "config.py", (1e9, 1e9))  # as old as the file before, and as long
        assert flags.load(f"{tmp_path}/config.py").num_workers == seed


def test_two_folders_with_modules_of_one_name(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, config=DIGITS, vit=MODEL.format(imports=f"x = {name!r}"))
        assert code_of(tmp_path / name, "vit:Model") and sys.modules["vit"].x == name


def test_configs_of_this_repository_have_no_code_of_their_own():
    assert dependencies.describe(flags.load(f"{ROOT}/configs/mnist_adasum.py")) == {}
    installed = flags.load(f"{ROOT}/configs/digits.py", keys("model.name=flax.linen:Dense model.features=3"))
    assert dependencies.describe(installed) == {}


def test_constructors_that_a_config_puts_into_a_registry_are_code_too(tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS, "given", MODELS.given)  # the registry itself is restored below
    registers = MODEL.format(imports="from models import MODELS") + "\nMODELS['own'] = Model\n"
    write(tmp_path, config=f"{registers}\n{DIGITS}")
    try:
        assert code_of(tmp_path, "own").keys() == {"config"}
    finally:
        MODELS.pop("own", None)


def test_the_rooms_are_those_of_the_table():
    from tests.test_architecture import FIRST_PARTY

    assert set(FIRST_PARTY) == dependencies.ROOMS


# ---- modules that cannot be imported, or have the name of another ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import math\n\nx = 1 / 0\n", "vit.py:3: ZeroDivisionError: division by zero"),
        ("def f(:\n", "vit.py:1: SyntaxError"),
        ("import no_such_library\n", "vit.py:1: ModuleNotFoundError: No module named 'no_such_library'"),
        ("from helper import nothing\n", "vit.py:1: ImportError"),
        ("import helper\nhelper.fail()\n", "helper.py:2: ValueError: two lines"),
        ("raise SystemExit(0)\n", "vit.py:1: SystemExit"),
        ("def f(): f()\nf()\n", "vit.py:1: RecursionError"),
    ],
)
def test_a_module_that_fails_is_one_line_with_its_place(text, said, tmp_path):
    write(tmp_path, config=DIGITS, vit=text, helper="def fail():\n    raise ValueError('two\\nlines')\n")
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        flags.load(f"{tmp_path}/config.py", ["--config.model.name=vit:Model"])
    assert str(caught.value).startswith("config.model.name='vit:Model': ")
    write(tmp_path, config=text)
    with pytest.raises(ConfigError, match=re.escape(said.replace("vit.py", "config.py"))):
        flags.load(f"{tmp_path}/config.py")


@pytest.mark.parametrize("name", ["models", "queue", "optax"])
def test_a_module_with_the_name_of_another_is_refused(name, tmp_path):
    write(tmp_path, config=DIGITS, **{name: MODEL.format(imports="")})
    flags.load(f"{tmp_path}/config.py")  # nobody needs it
    with pytest.raises(ConfigError, match=f"{name}.py' has the same name; rename yours"):
        flags.load(f"{tmp_path}/config.py", [f"--config.model.name={name}:Model"])
    write(tmp_path, config=f"from {name} import Model\n{DIGITS}")
    with pytest.raises(ConfigError, match=f"ImportError: cannot import name 'Model' from '{name}'"):
        flags.load(f"{tmp_path}/config.py")


def test_a_package_inside_one_of_ours_is_named(tmp_path):
    write(tmp_path, {"models/vit": MODEL.format(imports="")}, config=DIGITS)
    with pytest.raises(ConfigError, match=r"vit.py' cannot be imported, because 'models' is .*; rename one of them"):
        flags.load(f"{tmp_path}/config.py", ["--config.model.name=models.vit:Model"])


def test_a_module_beside_the_config_hides_none_of_this_repository(tmp_path):
    write(tmp_path, config=f"from data.sources import Source\n{DIGITS}", data="", tokenizers="", queue="")
    flags.load(f"{tmp_path}/config.py")
    assert sys.modules["data"].__file__ == str(ROOT / "data/__init__.py")


@pytest.mark.parametrize("name", ["models", "queue", "json", "my-config", "class", "x.y", "-my  ключ '🙂"])
def test_a_config_of_any_name_replaces_no_module(name, tmp_path):
    (tmp_path / f"{name}.py").write_text(DIGITS)
    before = sys.modules.get(name)
    assert flags.load(f"{tmp_path}/{name}.py").model.name == "mlp"
    assert name == "class" or sys.modules.get(name) is before
