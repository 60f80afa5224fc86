"""README and docs are true: programs run, commands parse, links lead somewhere, generated tables are current."""

import ast
import functools
import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import traceback
import types
from importlib import metadata
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl.testing import flagsaver
from jax import lax
from scipy import stats

import reducers
import train
from benchmarks import reducers as benchmarks_of_reducers
from benchmarks.kit import taking_turns
from configs import flags as config_flags
from configs import schema
from data.assumed import make_or_assume
from experiments import claims, plot
from experiments.__main__ import main as experiments_main
from experiments.__main__ import parser as experiments_parser
from experiments.execution import queue, results, saved_rows
from experiments.study import prose
from planning import __main__ as planning
from tests import ROOT, saved
from tests.claim_rows import whole_report
from tests.in_process import DIGITS, keys, train_py
from tests.started import python
from tests.stepper import Stepper, setup_of
from training.setup import make_setup

PYTHON = ".venv/bin/python"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Page(NamedTuple):
    """A page of the documentation, by its path from the root."""

    path: str
    text: str

    @property
    def prose(self) -> str:
        return FENCED.sub("", self.text)

    @property
    def code_in_prose(self) -> list[str]:
        return re.findall(r"`([^`\n]+)`", self.prose)

    def blocks(self, kind: str) -> list[str]:
        return [match[2] for match in FENCED.finditer(self.text) if match[1] == kind]

    @property
    def commands(self) -> list[str]:
        return [line for text in self.blocks("sh") for line in text.splitlines() if line.strip()]


def read(path: str) -> Page:
    return Page(path, (ROOT / path).read_text())


PAGES = [read(path) for path in ("README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))]
CONTRIBUTING = read("CONTRIBUTING.md")
LINKED = [*PAGES, CONTRIBUTING, read("benchmarks/RESULTS.md")]
COMMANDS = list(dict.fromkeys(line for page in (*PAGES, CONTRIBUTING) for line in page.commands))
FILES = {  # files that a page asks the reader to write: name -> text
    match[1]: text for page in PAGES for text in page.blocks("python") if (match := re.match(r"# (\w+\.py)\n", text))
}
FOLDER = "../mine"  # where commands expect these files, seen from the root
TARGETS = re.findall(r"^([\w./-]+):(?!=)", (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv"), re.MULTILINE)
MEASURED = "out/live/measured"  # a live run, whose arrival times its replay reads
ADDING = read("docs/adding_a_reducer.md")
(DIFF,) = ADDING.blocks("diff")
(EXAMPLE,) = re.findall(r'^\+ +"(\w+)": ', DIFF, re.MULTILINE)  # the reducer that the diff adds


def by_path(pages):
    return pytest.mark.parametrize("page", pages, ids=[page.path for page in pages])


def test_every_block_is_of_a_kind_that_is_checked():
    kinds = {match[1] for page in PAGES for match in FENCED.finditer(page.text)}
    assert kinds == {"sh", "text", "python", "diff"}
    assert all(page.text.count("\n```") == 2 * len(FENCED.findall(page.text)) for page in PAGES)


# ---- programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [pytest.param(page, id=page.path) for page in PAGES if page.blocks("python")])
def test_python_blocks_run_and_print_what_they_say(page, capsys, tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    for text in page.blocks("text"):
        if re.match(r"# \d+\. ", text):
            (tmp_path / prose.FILE).write_text(text)
    file = str(tmp_path / "claim.py")
    namespace: dict = {"__name__": "documentation", "__file__": file}  # a later block may continue an earlier one
    for text in page.blocks("python"):
        promotion = "standard" if "optax.adam(" in text else "strict"  # Adam mixes dtypes: docs/optax.md
        with jax.numpy_dtype_promotion(promotion), flagsaver.flagsaver():
            exec(compile(text, page.path, "exec"), namespace)
        promised = re.findall(r"^\s*print\(.*\)  # (.*)$", text, re.MULTILINE)
        assert len(promised) == text.count("print(")
        printed = capsys.readouterr().out.splitlines()
        if "train.main(" in text:  # prints its summary, too
            printed = [line for line in printed if line in promised]
        assert printed == promised
    if "config" in namespace:
        assert make_setup(schema.complete(namespace["config"])).num_steps > 1
    if "CLAIM" in namespace:
        assert "\n| 10000 | " in whole_report(namespace["CLAIM"], namespace["rows"])


@pytest.fixture
def mine(tmp_path_factory, monkeypatch):
    """A folder with the files that the reader wrote, and those of a live run."""
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    np.savez(folder / "worker_seconds-1.npz", seconds=np.ones((12, 6)))
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("line", [line for line in COMMANDS if FOLDER in line and "train.py" in line])
def test_commands_with_files_of_the_reader_run(line, mine, tmp_path):
    words = [word.replace(FOLDER, str(mine)) for word in shlex.split(line, comments=True)]
    path = words.pop(0).partition("=")[2] if words[0].startswith("PYTHONPATH=") else ""
    short = ("--config.train_epochs=None", "--config.train_steps=4", f"--workdir={tmp_path}")
    done = run_python(*words[1:], *short, cwd=ROOT, more=path)
    assert done.returncode == 0, done.stderr


def run_python(*arguments: str, cwd: pathlib.Path, more: str = "") -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [str(cwd), more]))
    return python(*arguments, cwd=cwd, timeout=240, without=("PYTEST_", "XLA_", "COV_"), PYTHONPATH=path)


def test_manual_is_built_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    done = run_python("-m", "sphinx", "--fail-on-warning", "--quiet", "docs", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api.html").read_text()
    assert all(f'id="reducers.{name}"' in page for name in reducers.REDUCERS)


# ---- commands ----------------------------------------------------------------------------------------------------


def check_command(line: str, *, mine: pathlib.Path) -> None:
    """Fails on a command that would not run, and on one of an unknown kind."""
    words = shlex.split(line.replace(FOLDER, str(mine)).replace(MEASURED, str(mine)), comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        assert words.pop(0).partition("=")[0] in ("PYTHONPATH", "TFDS_DATA_DIR", "XLA_FLAGS")
    match words:
        case ["make", target, *variables]:
            given = dict(variable.split("=", 1) for variable in variables)
            assert target in TARGETS and set(given) <= {"ARGS", "N", "PYTHON"}, line
            arguments = shlex.split(given.get("ARGS", ""))
            if target in ("test", "test-all", "test-compilers"):
                assert arguments in ([], ["-k", EXAMPLE]), line
            elif target == "bench-gpu":
                assert {argument.partition("=")[0] for argument in arguments} <= options_of("benchmarks.gpu"), line
            else:
                assert target in ("train", "train-local") or not arguments, line
                check_flags(arguments)
        case [".venv/bin/python" | ".venv-compilers/bin/python", "train.py", *arguments]:
            check_flags(arguments)
        case [".venv/bin/python", "-m", "live", *arguments]:
            check_flags(["--live", *arguments])
        case [".venv/bin/python", "-m", "pip", "install", "-r", file] | ["uv", "pip", "install", "-r", file]:
            assert (ROOT / file).exists(), line
        case ["kubectl", "apply", "-f", file]:
            assert (ROOT / file).exists(), line
        case [".venv/bin/python", "-m", "pip", "install", requirement]:
            check_jax_requirement(requirement)
        case [".venv/bin/python", "-m", "experiments", *arguments]:
            given = experiments_parser().parse_args(arguments)
            named = getattr(given, "row", None) or getattr(given, "name", None)
            assert given.command == "sweep" or not named or claims.load(named.partition("/")[0]), line
        case [".venv/bin/python", "-m", "planning", name, *arguments]:
            options = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
            assert options <= options_of("planning", name), line
        case [".venv/bin/python" | ".venv-compilers/bin/python", "-m", module, *arguments]:
            options = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
            assert options <= options_of(module), line
        case ["uv", "venv", "--python", version]:
            assert tuple(map(int, version.split("."))) >= (3, 11)
        case ["sbatch", *words]:  # a test of the launcher runs it with stand-ins
            script = next(number for number, word in enumerate(words) if not word.startswith("--"))
            assert (ROOT / words[script]).exists(), line
            check_flags(words[script + 1 :])
        case ["gcloud", "compute", "tpus", "tpu-vm", "ssh", _, "--zone=ZONE", "--worker=all", "--command", inner]:
            check_command(inner.partition(" && ")[2], mine=mine)
        case ["git", "apply", name]:
            assert f"`{name}`" in ADDING.prose, line
        case _:
            pytest.fail(f"a command of unknown kind: {line}")


def commands_of_runs(page: Page) -> list[list[str]]:
    """The commands of a page that make sweeps, list runs or draw their curves, as words after the interpreter."""
    lines = [shlex.split(line, comments=True) for line in page.commands]
    found = [words[2:] for words in lines if words[:2] == [PYTHON, "-m"]]
    shown = [words for words in found if words[0] == "experiments.plot" or words[1:2] in (["sweep"], ["ls"])]
    return [words for words in shown if not any(word.startswith(("--gantt", "--labels")) for word in words)]


@by_path([page for page in PAGES if commands_of_runs(page) and page.path != "docs/stragglers.md"])
def test_sweeps_lists_and_plots_run(page, mine, tmp_path, monkeypatch):
    """Trains nothing: each run of a sweep is written as it starts."""
    monkeypatch.setattr(queue, "train_command", saved.train_command)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    measured = {f"{name}{group}": 0.5 for name in ("cosine", "noise_scale") for group in ("", "/Dense_0/kernel")}
    for name, seed in (("digits", 0), ("mine", 0), ("telemetry", 0), ("telemetry", 1)):
        config = {"seed": seed, "optimizer": {"learning_rate": 0.1}}
        record = saved.evaluated(1, loss=1.0, accuracy=0.5, bytes_per_worker=8, **measured)
        saved.save(f"out/{name}/{seed}", config, [record])
    for module, *arguments in commands_of_runs(page):
        words = [found for word in arguments for found in sorted(glob.glob(word)) or [word.replace(FOLDER, str(mine))]]
        main = plot.main if module == "experiments.plot" else experiments_main
        assert main(words) == 0, words
    assert (tmp_path / "curves.png").stat().st_size > 1000


@functools.cache
def options_of(*command: str) -> set[str]:
    done = run_python("-m", *command, "--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"--\w+", done.stdout))


def check_flags(arguments: list[str]) -> None:
    """Builds what a command line of train.py describes; data sets may be assumed where this machine has none."""
    with flagsaver.flagsaver():
        config, _ = config_flags.parse(["train.py", *arguments])
        assert make_setup(config, open_data=make_or_assume).num_steps >= 1


def check_jax_requirement(requirement: str) -> None:
    name, extra, version = re.fullmatch(r"(\w+)\[(\w+)\]==([\d.]+)", requirement).groups()  # type: ignore[union-attr]
    pinned = re.findall(rf"^{name}==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert version in pinned
    assert extra in (metadata.metadata(name).get_all("Provides-Extra") or [])


@pytest.fixture
def in_root(monkeypatch, mine):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(reducers.REDUCERS, EXAMPLE, reducers.mean)  # as if the diff were applied
    return mine


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line, in_root):
    check_command(line, mine=in_root)


RUN_HERE = ("list", "run", "report", "reproduce", "verify")  # other tests run those of sweeps and `save`


def can_run_here(line: str) -> bool:
    """Whether a line is a command of experiments that needs no data that may be missing."""
    command, _, comment = line.partition("#")
    return bool(re.match(rf"{PYTHON} -m experiments ({'|'.join(RUN_HERE)})\b", command)) and "needs" not in comment


@pytest.mark.parametrize("line", [line for line in COMMANDS if can_run_here(line)])
def test_commands_of_experiments_run(line, in_root, tmp_path, capsys):
    arguments = [*shlex.split(line, comments=True)[3:], f"--out={tmp_path}"]
    if arguments[0] in ("run", "reproduce") and "--minutes=8" not in arguments:
        arguments.append("--minutes=0.1")
    arguments = [argument.replace("--minutes=8", "--minutes=0.1") for argument in arguments]
    code = experiments_main(arguments)
    said = capsys.readouterr().out
    judged = arguments[0] == "verify"  # other versions of JAX may give other numbers
    assert ("equal" in said or "different" in said) if judged else code == 0


SAVING = [line for line in COMMANDS if line.startswith(f"{PYTHON} -m experiments save ")]


@pytest.mark.parametrize("line", SAVING)
def test_commands_that_save_rows_run(line, in_root, tmp_path, monkeypatch, capsys):
    """Trains nothing: the folder of one finished run is written."""
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "published")
    arguments = [*shlex.split(line, comments=True)[3:], f"--out={tmp_path}"]
    given = experiments_parser().parse_args(arguments)
    experiment = claims.load(given.name)
    run, *_ = experiment.runs(given.scale, [])
    root = tmp_path / given.name / given.scale
    folder = saved.save(
        results.folder_of(run, root), run.config, [saved.evaluated(1, accuracy=0.5, loss=1.0, simulated_seconds=0.0)]
    )
    (folder / results.RULE).write_text(json.dumps(experiment.stated))
    assert experiments_main(arguments) == 0
    assert f"{given.name}: 1 of " in capsys.readouterr().out
    assert [row["run"] for row in saved_rows.read(given.name, given.scale)] == [run.name]


@pytest.mark.parametrize("line", [line for line in read("README.md").commands if "make train" in line])
def test_runs_of_the_readme_learn(line, in_root, tmp_path, capsys):
    variables = dict(word.split("=", 1) for word in shlex.split(line, comments=True)[2:])
    arguments = shlex.split(variables.get("ARGS", ""))
    assert train_py(*arguments, "--num_devices=2", f"--workdir={tmp_path}") == 0
    said = capsys.readouterr().out
    assert "test accuracy" in said and "remark" not in said, said


@pytest.mark.parametrize(
    "line",
    [
        "make trian",
        'make train ARGS="--config.reducer.nam=sum"',
        'make train ARGS="--config=configs/nope.py"',
        "make train CONFIG=configs/mnist.py",
        "JAX_PLATFORM=cpu make train",
        f"{PYTHON} train.py --evaluate",
        f"{PYTHON} nope.py --config=configs/digits.py",
        f"{PYTHON} -m experiments.plot out/* --output=x.png",
        f"{PYTHON} -m experiments.nope --help",
        f"{PYTHON} -m experiments run no_such_claim",
        f"{PYTHON} -m experiments list --jobs=2",
        f"{PYTHON} -m experiments verify no_such_claim/seed=0",
        f'{PYTHON} -m pip install "jax[cuda13]==0.10.1"',
        f'{PYTHON} -m pip install "jax[gpu]==0.10.2"',
        "conda install jax",
    ],
)
def test_the_check_of_commands_rejects(line, in_root):
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        check_command(line, mine=in_root)


def test_xla_flags_are_known_to_jaxlib():
    (flag,) = {flag for line in COMMANDS for flag in re.findall(r"^XLA_FLAGS=(\S+)", line)}
    code = "import jax; jax.jit(lambda x: x + 1)(1)"

    def run(flags: str) -> int:
        return python("-c", code, XLA_FLAGS=flags, JAX_PLATFORMS="cpu").returncode

    assert run(flag) == 0
    assert run("--xla_gpu_deterministic_opps=true") != 0


FLAGS_IN_PROSE = dict.fromkeys(code for page in PAGES for code in page.code_in_prose if code.startswith("--"))


@pytest.mark.parametrize("code", FLAGS_IN_PROSE)
def test_flag_in_the_prose(code, in_root):
    for flag in code.split():
        name, _, value = flag.removeprefix("--").partition("=")
        if not name.startswith("config"):
            assert (
                {name, name.removeprefix("no")} & set(train.FLAGS)
                or name in ("help", "flagfile")  # absl's own
                or f"--{name}" in options_of_experiments() | options_of_planning()
            )
        elif value and value == value.lower():
            check_flags([flag])
        else:  # the value is left out, or a placeholder such as FILE
            config = config_flags.load("configs/digits.py")
            for key in name.split(".")[1:]:
                config = config[key]


@functools.cache
def options_of_experiments() -> set[str]:
    """The options of all commands of ``python -m experiments``, as their --help lists them."""
    (commands,) = (action.choices for action in experiments_parser()._actions if action.choices)
    return set(re.findall(r"--\w+", "".join(command.format_help() for command in commands.values())))


@functools.cache
def options_of_planning() -> set[str]:
    """The options of all commands of ``python -m planning``, and of traces and arrivals."""
    return {"--path", "--workers"}.union(*(options_of("planning", name) for name in planning.COMMANDS))


# ---- a new reducer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A copy of the repository to which the diff has been applied."""
    copy = tmp_path_factory.mktemp("edited") / "repository"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "out")
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / "new.diff").write_text(DIFF)

    def apply(*options: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
        command = ["git", "apply", *options, "new.diff"]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60)

    if apply("--reverse", "--check").returncode:  # a reader who follows the page may have applied it already
        done = apply("--whitespace=error")
        assert done.returncode == 0, done.stderr
    return copy


def test_the_diff_is_three_edits():
    touched = re.findall(r"^\+\+\+ b/(.*)$", DIFF, re.MULTILINE)
    assert touched == ["reducers/__init__.py", f"reducers/sums/{EXAMPLE}.py", "tests/cases.py"]


def test_the_new_reducer_is_in_style(edited):
    pytest.importorskip("ruff", reason="ruff is in requirements-dev.txt")
    for tool in (["format", "--check"], ["check"]):
        done = run_python("-m", "ruff", *tool, "--no-cache", "reducers", "tests/cases.py", cwd=edited)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_new_reducer_passes_the_laws(edited):
    # As the page has it, of all files but those that other packages are needed for.
    chosen = (
        "-m",
        "not slow and not compilers",
        "-k",
        f"{EXAMPLE} or every_reducer_has_a_case",
        "--ignore-glob=tests/test_*_oracle.py",
    )
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen, cwd=edited)
    assert done.returncode == 0, done.stdout + done.stderr
    count = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    # the rows of its laws, one doctest, and the completeness of the table
    assert count and int(count[1]) >= 25 and "skipped" not in done.stdout, done.stdout


def test_the_new_reducer_trains(edited):
    flags = ("--config=configs/digits.py:smoke", f"--config.reducer.name={EXAMPLE}", "--workdir=out/try")
    done = run_python("train.py", *flags, cwd=edited)
    assert done.returncode == 0 and EXAMPLE in done.stdout, done.stderr


# ---- tables, trees, links ----------------------------------------------------------------------------------------

GENERATED = re.compile(r"<!-- generated by: python (-m [\w. -]+?) -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)
TABLES = [(page.path, *match.groups()) for page in PAGES for match in GENERATED.finditer(page.text)]


@pytest.mark.parametrize(("path", "command", "table"), TABLES, ids=[command for _, command, _ in TABLES])
def test_generated_tables_are_current(path, command, table):
    done = run_python(*shlex.split(command), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    # A reader who applies the diff need not edit the table of reducers.
    made = [row for row in done.stdout.splitlines() if not row.startswith(f"| `{EXAMPLE}` |")]
    assert table.splitlines() == made, f"paste what `python {command}` prints into {path}"


def test_all_generated_tables_are_found():
    assert sum(page.text.count("<!-- generated by") for page in PAGES) == len(TABLES) == 2


def test_the_layout_names_every_folder():
    (tree,) = (text for text in read("README.md").blocks("text") if "train.py" in text)
    named = set(re.findall(r"(?:^|  )([\w]+(?:/|\.py))(?=  )", tree, re.MULTILINE))
    sources = [*ROOT.glob("*.py"), *ROOT.glob("[a-z]*/*.py")]
    folders = {path.name if path.parent == ROOT else f"{path.parent.name}/" for path in sources}
    assert named == (folders | {"docs/"}) - {"conftest.py", "build/", "out/", "dist/"}


def test_the_folder_of_a_run(tmp_path, capsys):
    (tree,) = (text for text in read("docs/training.md").blocks("text") if text.startswith("out/"))
    assert train_py(f"--config={DIGITS}:smoke", f"--workdir={tmp_path}") == 0
    capsys.readouterr()
    entries = [re.match(r" {4}(\S+(?:, \S+)*)  ", line) for line in tree.splitlines()[1:]]
    named = {name.rstrip("/") for entry in entries for name in entry[1].split(", ")}  # type: ignore[index]
    assert named == {path.name for path in tmp_path.iterdir()}


def test_the_names_on_the_path_of_a_step_stand_in_their_files():
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|$", READING.text, re.MULTILINE)
    for name, file in rows:
        nodes = ast.walk(ast.parse((ROOT / file).read_text()))
        used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        assert name in used, f"{name} in {file}"
    wanted = ["jax.pmap", "jax.shard_map", "jax.value_and_grad", "optimizer.update", "optax.apply_updates"]
    assert {*wanted, "reducer.update"} <= {name for name, _ in rows}
    assert len({file for _, file in rows}) <= 3


def recorded(monkeypatch, owner, name: str, root: pathlib.Path = ROOT) -> list[list[str]]:
    """A list that gets, at each call of a function, the files below a folder on the way to it, first callers first."""
    ways, function = [], getattr(owner, name)

    def call(*args, **kwargs):
        files = [pathlib.Path(frame.filename) for frame in traceback.extract_stack()]
        ours = dict.fromkeys(str(file.relative_to(ROOT)) for file in files if file.is_relative_to(root))
        ways.append([file for file in ours if not file.startswith((".venv", "tests/")) and file != "conftest.py"])
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return ways


READING = read("docs/reading_the_code.md")
WAYS = [[line.split()[0] for line in text.splitlines() if line] for text in READING.blocks("text")]
ADASUM_OF_THE_FIRST = keys("""
    reducer.name=backup_workers reducer.num_required=6 reducer.combine=adasum
    arrivals.name=lognormal
""")


@pytest.mark.parametrize(
    ("collective", "overrides", "most"),
    [("all_to_all", ADASUM_OF_THE_FIRST, 12), ("psum", (), 5)],
    ids=["adasum", "mean"],
)
def test_the_way_to_a_collective_is_what_the_page_says(collective, overrides, most, monkeypatch):
    stepper = Stepper(setup_of("--config.model.name=softmax", *overrides), num_devices=2)
    ways = recorded(monkeypatch, lax, collective)
    stepper.steps(0, 1)
    (page,) = [files for files in WAYS if files[-len(ways[0]) :] == ways[0]]
    assert len(page) <= most


def test_the_way_of_a_benchmark_is_what_the_page_says(monkeypatch, capsys):
    clock = types.SimpleNamespace(perf_counter=map(float, range(1000)).__next__)
    monkeypatch.setattr(taking_turns, "time", clock)
    ways = recorded(monkeypatch, clock, "perf_counter", ROOT / "benchmarks")
    (line,) = [line for line in READING.commands if "-m benchmarks." in line]
    assert benchmarks_of_reducers.main([*line.split()[3:], "--sizes=300", "--repeats=1"]) == 0
    assert "adasum over mean, 8 devices, 0.0003 M floats in one leaf: 1 x" in capsys.readouterr().out
    assert ways and all(way in WAYS for way in ways)


def test_the_way_of_a_checkpoint_is_what_the_page_says(tmp_path, monkeypatch):
    saves = recorded(monkeypatch, ocp.AsyncCheckpointer, "save")
    renames = recorded(monkeypatch, os, "rename")
    assert train_py(f"--config={DIGITS}:smoke", f"--workdir={tmp_path}") == 0
    assert saves and all([way[0], *way[-2:]] in WAYS for way in saves)
    assert ["runs/checkpoints.py"] in renames


def test_the_way_of_a_claim_is_what_the_page_says(tmp_path, monkeypatch, capsys):
    (line,) = [line for line in READING.commands if "-m experiments " in line]
    rows = results.published(line.split()[-1])
    monkeypatch.setattr(results, "finished", lambda *_, **__: rows)
    ways = recorded(monkeypatch, stats, "ttest_ind", ROOT / "experiments")
    assert experiments_main([*line.split()[3:], f"--out={tmp_path}"]) == 0
    assert "**Verdict: " in capsys.readouterr().out
    assert ways and all(way in WAYS for way in ways)


@by_path(PAGES)
def test_paths_in_the_prose_exist(page):
    for code in page.code_in_prose:
        if re.fullmatch(r"[\w-]+(/[\w-]+)*/?(\.(py|txt|md|cff))?", code) and ("/" in code or "." in code):
            assert (ROOT / code).exists() or code in FILES or code.startswith(("out/", "profile/")), code


@by_path(LINKED)
def test_links_and_anchors_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.prose):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = (ROOT / page.path).parent / path if path else ROOT / page.path
            assert file.exists(), target
            assert not anchor or anchor in anchors(file.read_text()), target


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower() for heading in headings}
