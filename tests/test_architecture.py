"""The house keeps its shape: who may import whom, and what happens at import.

Every check is a function of sources that returns offenders; each is tried on the repository, which has none, and on a
made-up offender, which it must find.
"""

import ast
import collections
import graphlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from runs import environment
from tests import ROOT
from tests.started import python

Sources = dict[str, str]  # path from the root -> text

# Who may import whom, besides itself: the whole design in a table. A new package states its place here.
FIRST_PARTY: dict[str, set[str]] = {
    "launch": set(),  # it begins every command and starts train.py, of which it knows nothing but the flags
    "parallel": set(),
    "reducers": set(),
    "tensor_parallel": set(),
    "asynchronous": {"reducers"},
    "compilers": {"reducers"},
    "data": {"launch", "reducers"},
    "models": {"reducers"},
    "optim": {"reducers"},
    "runs": {"launch", "parallel", "reducers"},
    "training": {"asynchronous", "compilers", "data", "models", "optim", "parallel", "reducers", "runs"},
    "syncsum": {"optim", "reducers", "tensor_parallel"},
    "live": {"asynchronous", "data", "launch", "parallel", "reducers", "runs", "training"},
    "configs": {"asynchronous", "data", "models", "optim", "parallel", "reducers", "runs", "training"},
    "train": {"configs", "data", "launch", "live", "parallel", "reducers", "runs", "training"},
    "planning": {"configs", "data", "launch", "models", "reducers", "runs", "training"},
    "conftest": {"reducers"},
    "docs": {"reducers"},
}
# Parts, never the trainer: train.py is measured as a command.
FIRST_PARTY["benchmarks"] = FIRST_PARTY["training"] | {"configs", "launch", "tensor_parallel", "training"}
FIRST_PARTY["experiments"] = FIRST_PARTY["benchmarks"] | {"planning"}
FIRST_PARTY["tests"] = set(FIRST_PARTY)

# Packages that others may take out of this repository, or that must stay free of the trainer's tools.
THIRD_PARTY: dict[str, set[str]] = {
    "asynchronous": {"jax", "numpy", "optax"},
    "compilers": {"jax", "numpy"},
    "reducers": {"jax", "numpy", "optax"},
    "models": {"flax", "jax", "numpy", "optax"},
    "optim": {"jax", "numpy", "optax"},
    "parallel": {"jax", "numpy"},
    "syncsum": set(),
    "tensor_parallel": {"jax"},
}

# Slow to import: a wrong flag must be answered fast, so they are imported where they are used.
HEAVY = {
    "tensorflow",
    "tokenizers",
    "tensorflow_datasets",
    "sklearn",
    "orbax",
    "matplotlib",
    "tensorboardX",
    "pandas",
    "PIL",
    "torch",
}


def sources() -> Sources:
    """The repository's own Python, found without git so that an archive of it can be tested too."""
    found = {str(path.relative_to(ROOT)): path for path in [*ROOT.glob("*.py"), *ROOT.glob("[a-z]*/**/*.py")]}
    return {name: found[name].read_text() for name in sorted(found) if not name.startswith(("build/", "dist/", "out/"))}


SOURCES = sources()


def package_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def imports(text: str, *, package: str) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import, wherever it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, package if node.level else (node.module or "").split(".")[0]


# ---- the checks --------------------------------------------------------------------------------------------------


def imports_against_the_table(files: Sources) -> list[str]:
    ours = {package_of(path) for path in files} | set(FIRST_PARTY)
    return [
        f"{path}:{line} imports {name}"
        for path, text in files.items()
        for line, name in imports(text, package=package_of(path))
        if name in ours and name != package_of(path) and name not in FIRST_PARTY.get(package_of(path), ())
    ]


def libraries_against_the_table(files: Sources) -> list[str]:
    return [
        f"{path}:{line} imports {name}"
        for path, text in files.items()
        for line, name in imports(text, package=package_of(path))
        if package_of(path) in THIRD_PARTY
        and name not in THIRD_PARTY[package_of(path)] | set(sys.stdlib_module_names) | set(FIRST_PARTY)
    ]


def drawers(files: Sources) -> list[str]:
    """A helper lives where its noun lives."""
    names = {"util", "utils", "helper", "helpers", "misc", "common"}
    return [path for path in files if names & set(re.split(r"[/_.]", path))]


def doing_things_at_import(files: Sources) -> list[str]:
    """Nothing but definitions; absl's flags are defined by a call."""
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)

    def harmless(node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING")
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith("flags.DEFINE_")
        return isinstance(node, definitions)

    return [
        f"{path}:{node.lineno} {ast.unparse(node).splitlines()[0]}"
        for path, text in files.items()
        if package_of(path) not in ("tests", "syncsum")  # which gives modules a second name, and does nothing else
        for node in ast.parse(text).body
        if not harmless(node)
    ]


CHECKS: dict[Callable[[Sources], list[str]], list[Sources]] = {
    imports_against_the_table: [
        {"reducers/one.py": "import parallel"},
        {"reducers/one.py": "def f():\n    from configs.schema import experiment"},
        {"train.py": "import experiments.plot"},
        {"experiments/one.py": "from tests import cases"},
        {"benchmarks/one.py": "from train import train"},
        {"conftest.py": "import tests.cases"},
    ],
    libraries_against_the_table: [
        {"reducers/one.py": "import flax"},
        {"models/one.py": "import tensorflow"},
        {"parallel/one.py": "def f():\n    import ml_collections"},
        {"optim/one.py": "from absl import logging"},
    ],
    drawers: [{"runs/utils.py": ""}, {"data/tfds_utils.py": ""}],
    doing_things_at_import: [
        {"runs/one.py": "print('hello')"},
        {"runs/one.py": "for x in range(3): pass"},
        {"train.py": "jax.config.update('jax_platforms', 'cpu')"},
    ],
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_no_offender(check):
    offenders = check(SOURCES)
    assert not offenders, "\n" + "\n".join(offenders)


@pytest.mark.parametrize(
    ("check", "offender"),
    [(check, offender) for check, offenders in CHECKS.items() for offender in offenders],
    ids=lambda value: value.__name__ if callable(value) else next(iter(value)),
)
def test_the_check_finds_an_offender(check, offender):
    assert check(offender)


# ---- the tables themselves ---------------------------------------------------------------------------------------


def levels_of(graph: dict[str, set[str]]) -> list[set[str]]:
    """Nodes by level: each needs nodes of lower levels alone; a circle raises an error."""
    sorter = graphlib.TopologicalSorter(graph)
    sorter.prepare()
    levels = []
    while ready := sorter.get_ready():
        levels.append(set(ready))
        sorter.done(*ready)
    return levels


def test_the_table_has_every_room_and_no_circle():
    levels_of(FIRST_PARTY)
    assert set(FIRST_PARTY) == {package_of(path) for path in SOURCES}
    assert not any(
        {"tests", "experiments", "benchmarks"} & FIRST_PARTY[room] for room in FIRST_PARTY if room != "tests"
    )
    with pytest.raises(graphlib.CycleError):
        levels_of({**FIRST_PARTY, "reducers": {"train"}})


def files_graph(files: Sources) -> dict[str, set[str]]:
    """Module -> the modules of this repository that it imports, wherever the import stands."""
    modules = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): text for path, text in files.items()
    }
    graph: dict[str, set[str]] = {}
    for module, text in modules.items():
        named = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= inner & modules.keys() or {str(node.module)}
        graph[module] = named & modules.keys() - {module}
    return graph


GRAPH = files_graph({path: text for path, text in SOURCES.items() if package_of(path) not in ("tests", "conftest")})


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Room -> the other rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for module, imported in graph.items():
        room = module.split(".")[0]
        rooms.setdefault(room, set()).update({name.split(".")[0] for name in imported} - {room})
    return rooms


def test_the_hash_of_the_code_sees_every_room_that_a_run_imports(tmp_path):
    rooms: set[str] = set()
    while (more := FIRST_PARTY["train"].union(*(FIRST_PARTY[room] for room in rooms))) != rooms:
        rooms = more
    hashes = {environment.code(tmp_path)}
    for room in rooms:
        (tmp_path / room).mkdir()
        (tmp_path / room / "one.py").touch()
        hashes.add(environment.code(tmp_path))
    assert len(hashes) == 1 + len(rooms) > 8


def levels_of_the_readme() -> list[set[str]]:
    """The rooms of its layout, by level."""
    layout = (ROOT / "README.md").read_text().partition("## Layout")[2].partition("```text")[2].partition("```")[0]
    levels: dict[int, set[str]] = {}
    for line in layout.partition("docs/")[0].splitlines():
        if found := re.match(r"(?:level (\d))? *(\w+)(?:/|\.py) ", line):
            level = int(found[1]) if found[1] else min(levels)
            levels.setdefault(level, set()).add(found[2])
    return [levels[level] for level in sorted(levels)]


def test_few_rooms_on_few_levels_and_no_circle_of_files():
    levels_of(GRAPH)
    levels = levels_of(rooms_of(GRAPH))
    assert levels_of_the_readme() == [rooms - {"docs"} for rooms in levels]
    assert len(levels) <= 6 and sum(map(len, levels)) <= 19
    with pytest.raises(graphlib.CycleError):
        levels_of(files_graph({"data/a.py": "import data.b", "data/b.py": "def f():\n    from data import a"}))


@pytest.mark.parametrize("room", rooms_of(GRAPH))
def test_no_room_has_more_than_six_floors(room):
    """A file is one floor above the highest file of its room that it imports; doors (``__init__``) do not count."""
    inside = {module for module in GRAPH if module.split(".")[0] == room}
    files = {module for module in inside if not any(other.startswith(f"{module}.") for other in inside)}
    assert len(levels_of({module: GRAPH[module] & files for module in files})) <= 6


LISTS_OF_EQUALS = {"configs", "benchmarks"}  # a config in each file, and a benchmark


def test_no_folder_has_more_than_fifteen_files():
    shelves = collections.Counter(
        path.rpartition("/")[0] for path in SOURCES if package_of(path) != "tests" and not path.endswith("__init__.py")
    )
    assert not {shelf: count for shelf, count in shelves.items() if count > 15 and shelf not in LISTS_OF_EQUALS}


# ---- importing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPH)
def test_every_module_imports(name):
    assert importlib.import_module(name).__name__ == name


def test_train_imports_nothing_heavy():
    imported = "import sys, train, experiments.plot, data.prepare, benchmarks.reducers, benchmarks.step"
    done = python("-c", f"{imported}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert "jax" in done.stdout.split() and not HEAVY & set(done.stdout.split())
