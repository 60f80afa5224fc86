"""The README is true: its code runs, its commands are understood, its diff applies and passes the laws."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata

import jax
import pytest
from absl.testing import flagsaver
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

import data
import models
import reducers
import runs
import train
from configs import flags as config_flags
from configs import schema
from experiments import claims
from experiments.__main__ import parser as experiments_parser
from reducers.table import table
from training.setup import build

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = [(m[1], m[2]) for m in re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.strip()]
CODE = re.findall(r"`([^`\n]+)`", PROSE)
(DIFF,) = (text for kind, text in BLOCKS if kind == "diff")
(EXAMPLE,) = re.findall(r'^\+ +"(\w+)": ', DIFF, re.MULTILINE)  # the reducer that the diff adds


def test_every_block_is_of_a_kind_that_is_checked():
    assert {kind for kind, _ in BLOCKS} == {"sh", "text", "python", "diff"}


# ---- python ------------------------------------------------------------------------------------------------------


def test_python_blocks_run_and_print_what_they_say(capsys):
    namespace: dict = {"__name__": "readme"}  # a later block may go on from an earlier one
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "README.md", "exec"), namespace)
            said = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
            assert len(said) == text.count("print(") and capsys.readouterr().out.splitlines() == said
    config = schema.complete(namespace["config"])
    assert build(config).num_steps > 1
    with pytest.raises(NameError, match="unbound axis name"):  # automatic sharding
        jax.jit(namespace["train_step"])(namespace["params"], namespace["opt_state"], namespace["flat"])


def test_what_it_says_of_check_vma():
    reducer = reducers.mean("worker")
    mesh = jax.make_mesh((8,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("worker")

    def reduced(*, mark, **options):
        def step(weight, x):
            gradient = jax.grad(lambda w: jnp.sum(w * x))(mark(weight))
            return reducer.update(gradient, reducer.init(gradient))[0]

        mapped = jax.shard_map(step, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=PartitionSpec(), **options)
        return float(mapped(jnp.ones(()), jnp.arange(8.0)))

    mean, total = 3.5, 28.0
    assert reduced(mark=lambda w: w, check_vma=False) == mean
    assert reduced(mark=lambda w: lax.pcast(w, "worker", to="varying")) == mean
    assert reduced(mark=lambda w: w) == total  # the silent mistake; once JAX mends it, the README may forget it


# ---- commands ----------------------------------------------------------------------------------------------------


def check_command(line: str) -> None:
    """Fails on a command that would not do what it says, and on one of a kind that it does not know."""
    words = shlex.split(line, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        assert words.pop(0).partition("=")[0] in ("TFDS_DATA_DIR", "XLA_FLAGS")
    match words:
        case ["make", target, *variables]:
            given = dict(variable.split("=", 1) for variable in variables)
            assert target in make_targets() and set(given) <= {"ARGS", "N", "PYTHON"}, line
            arguments = shlex.split(given.get("ARGS", ""))
            if target in ("test", "test-all"):
                assert arguments in ([], ["-k", EXAMPLE]), line
            else:
                assert target in ("train", "train-local") or not arguments, line
                check_flags(arguments)
        case [".venv/bin/python", "train.py", *arguments]:
            check_flags(arguments)
        case [".venv/bin/python", "-m", "pip", "install", requirement]:
            check_jax_requirement(requirement)
        case [".venv/bin/python", "-m", "experiments", *arguments]:
            given = experiments_parser().parse_args(arguments)
            assert given.command not in ("run", "reproduce", "publish") or claims.load(given.name), line
        case [".venv/bin/python", "-m", module, *arguments]:
            options = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
            assert options <= options_of(module), line
        case ["sbatch", nodes, script, *arguments]:
            assert nodes.startswith("--nodes=") and (ROOT / script).exists(), line
            check_flags(arguments)
        case ["kubectl", "apply", "-f", manifest]:
            assert (ROOT / manifest).exists(), line
        case ["git", "apply", name]:
            assert f"save it as `{name}`" in README
        case _:
            pytest.fail(f"a command of unknown kind: {line}")


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    return set(re.findall(r"^([\w./-]+):(?!=)", text, re.MULTILINE))


def options_of(module: str) -> set[str]:
    help_text = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return set(re.findall(r"--\w+", help_text))


def experiments_options() -> set[str]:
    (kinds,) = (action for action in experiments_parser()._actions if action.dest == "command")
    return {text.strip("-") for kind in kinds.choices.values() for text in kind._option_string_actions}  # type: ignore


def check_flags(arguments: list[str]) -> None:
    """Builds the program of a command line, on the sizes of its data alone where they are not on this machine."""
    with flagsaver.flagsaver():
        config, _ = config_flags.parse(["train.py", *arguments])
        assert build(config, open_data=data.make_or_assume).num_steps >= 1


def check_jax_requirement(requirement: str) -> None:
    name, extra, version = re.fullmatch(r"(\w+)\[(\w+)\]==([\d.]+)", requirement).groups()  # type: ignore[union-attr]
    pinned = re.findall(rf"^{name}==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert version in pinned
    assert extra in (metadata.metadata(name).get_all("Provides-Extra") or [])


@pytest.fixture
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(reducers.REDUCERS, EXAMPLE, reducers.mean)  # as if the diff were applied


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line, in_root):
    check_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "make trian",
        'make train ARGS="--config.reducer.nam=sum"',
        'make train ARGS="--config=configs/nope.py"',
        "make train CONFIG=configs/mnist.py",
        "JAX_PLATFORM=cpu make train",
        ".venv/bin/python train.py --evaluate",
        ".venv/bin/python -m experiments.plot out/* --output=x.png",
        ".venv/bin/python -m experiments run no_such_claim",
        ".venv/bin/python -m experiments list --jobs=2",
        '.venv/bin/python -m pip install "jax[cuda13]==0.10.1"',
        '.venv/bin/python -m pip install "jax[gpu]==0.10.2"',
        "conda install jax",
    ],
)
def test_the_check_of_commands_rejects(line, in_root):
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        check_command(line)


def test_xla_flags_are_known_to_jaxlib():
    (flag,) = set(re.findall(r"XLA_FLAGS=(\S+)", README))
    code = "import jax; jax.jit(lambda x: x + 1)(1)"

    def run(flags: str) -> int:
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60).returncode

    assert run(flag) == 0
    assert run("--xla_gpu_deterministic_opps=true") != 0


@pytest.mark.parametrize("code", [code for code in CODE if code.startswith("--")])
def test_flag_in_the_text(code, in_root):
    name, equals, _ = code.removeprefix("--").partition("=")
    if name in experiments_options():
        return
    if equals and "<" not in code:
        check_flags([code])
    elif name.startswith("config."):
        config = config_flags.load("configs/digits.py")
        for key in name.split(".")[1:]:
            config = config[key]
    else:
        # absl adds help where train.py is the program
        assert name in train.FLAGS or name == "help"


# ---- the three edits ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A copy of the repository with the README's diff applied."""
    copy = tmp_path_factory.mktemp("edited") / "repository"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / "clipped.diff").write_text(DIFF)

    def apply(*options: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
        command = ["git", "apply", *options, "clipped.diff"]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60)

    if apply("--reverse", "--check").returncode:  # not yet done by a reader who follows the README
        done = apply("--whitespace=error")
        assert done.returncode == 0, done.stderr
    return copy


def run_in(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "XLA_", "COV_"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


def test_the_diff_is_three_edits():
    touched = re.findall(r"^\+\+\+ b/(.*)$", DIFF, re.MULTILINE)
    assert touched == ["reducers/__init__.py", f"reducers/{EXAMPLE}.py", "tests/cases.py"]


def test_the_new_reducer_passes_the_laws(edited):
    chosen = ("-k", f"{EXAMPLE} or every_reducer_has_a_case", "tests/test_reducers.py", "reducers")
    done = run_in(edited, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    count = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    # the rows of its laws, one doctest, and the completeness of the table
    assert count and int(count[1]) >= 20 and "skipped" not in done.stdout, done.stdout


def test_the_new_reducer_is_in_style(edited):
    pytest.importorskip("ruff", reason="ruff is one of requirements-dev.txt")
    for tool in (["format", "--check"], ["check"]):
        done = run_in(edited, "-m", "ruff", *tool, "--no-cache", "reducers", "tests/cases.py")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_new_reducer_trains(edited):
    flags = ("--config=configs/digits.py:smoke", f"--config.reducer.name={EXAMPLE}", "--workdir=out/try")
    done = run_in(edited, "train.py", *flags)
    assert done.returncode == 0 and f"reducer {EXAMPLE}" in done.stdout, done.stderr


# ---- tables, trees, links ----------------------------------------------------------------------------------------


def rows_under(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = re.split(r"^#+ ", PROSE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_table_of_reducers():
    assert set(rows_under("Reducers")) - {EXAMPLE} == set(reducers.REDUCERS) - {EXAMPLE}
    # A reader who applies the diff need not edit the README too.
    made = [row for row in table().splitlines() if not row.startswith(f"| `{EXAMPLE}` |")]
    assert "\n".join(made) in README, "paste what `python -m reducers` prints"


def test_five_flags():
    assert len(rows_under("Five flags")) == 5


def test_names_of_models():
    (sentence,) = re.findall(r"models are ([^.]+)\.", README)
    assert re.findall(r"`(\w+)`", sentence) == list(dict.fromkeys(re.findall(r"`(\w+)`", sentence)))
    assert set(re.findall(r"`(\w+)`", sentence)) == set(models.MODELS)


def test_tree_of_the_repository():
    tree = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("train.py"))
    named = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    there = {path.name for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert named == there - {"conftest.py", "build", "out", "dist"}


def test_tree_of_a_run(tmp_path, capsys):
    tree = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("out/"))
    with flagsaver.flagsaver():
        assert train.main(["", f"--config={ROOT}/configs/digits.py:smoke", f"--workdir={tmp_path}"]) == 0
    capsys.readouterr()
    entries = [re.match(r" {4}(\S+(?:, \S+)*)  ", line) for line in tree.splitlines()[1:]]
    named = {name.rstrip("/") for entry in entries for name in entry[1].split(", ")}  # type: ignore[index]
    assert named == {path.name for path in tmp_path.iterdir()}


def test_fields_of_the_host_clock_are_all_named():
    assert set(runs.HOST_CLOCK_FIELDS) <= set(CODE)


def test_every_path_and_link_exists():
    for code in CODE:
        if re.fullmatch(r"[\w-]+(/[\w-]+)*\.(py|txt|md|cff)", code):
            assert (ROOT / code).exists(), code
    slugs = {re.sub(r"[^\w -]", "", h).replace(" ", "-").lower() for h in re.findall(r"^#+ (.+)$", PROSE, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", PROSE):
        if target.startswith("#"):
            assert target[1:] in slugs, target
        elif not target.startswith("https://"):
            assert (ROOT / target).exists(), target
