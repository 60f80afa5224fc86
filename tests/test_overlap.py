"""What can overlap: a collective of one layer's gradient does not wait for the backward pass of the layers before."""

import math
import os

import jax
import pytest

from configs import flags
from data.assumed import make_or_assume
from parallel.backend import compile_quickly, set_xla_default
from tests import ROOT
from tests.in_process import train_py
from tests.started import python
from tests.stepper import Stepper, same_bits, setup_of
from training.setup import make_setup

LATENCY_HIDING = "xla_gpu_enable_latency_hiding_scheduler"
WIDTH = 1024  # a matrix of it is larger than a batch of small leaves
COLLECTIVES = {f"stablehlo.{kind}" for kind in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")}


def lowered(name, *overrides, platform):
    """The whole step of a perceptron on 4 devices, lowered for a platform that need not be here."""
    wide = f"--config.model.hidden_sizes={(WIDTH, WIDTH, WIDTH)}"
    overrides = (
        wide,
        f"--config.reducer.name={name}",
        "--config.num_workers=4",
        "--config.mapping=shard_map",
        *overrides,
    )
    run = Stepper(setup_of(*overrides), num_devices=4, lanes="vmap")
    lowered, _ = run.step.lower(*run.shapes(), platforms=(platform,))["step"]
    return lowered


def products_before_collectives(program):
    """Of each collective of a large leaf or a device's part of it, how many products must be there before, in order."""
    module = program.compiler_ir().body
    functions = {op.attributes["sym_name"].value: op for op in module if op.operation.name == "func.func"}
    found = []

    def walk(block, given, outside):
        """Returns what a block returns, as sets of the products that they depend on."""
        known = {**outside, **dict(zip(block.arguments, given, strict=True))}
        for op in block:
            before = [known[operand] for operand in op.operands]
            after = frozenset().union(*before)
            if op.name in COLLECTIVES:
                if max(math.prod(operand.type.shape) for operand in op.operands) >= WIDTH * WIDTH // 4:
                    found.append(len(after))
            elif op.name == "stablehlo.dot_general":
                after |= {op.result}
            elif op.name.endswith("return"):
                return before
            elif op.name in ("func.call", "sdy.manual_computation"):
                called = op if op.regions else functions[op.attributes["callee"].value]
                known |= zip(op.results, walk(called.regions[0].blocks[0], before, {}), strict=True)
                continue
            elif op.name in ("stablehlo.case", "stablehlo.while"):
                for inner in (region.blocks[0] for region in op.regions):
                    after = after.union(*walk(inner, [after] * len(inner.arguments), known))
            known |= dict.fromkeys(op.results, after)
        raise AssertionError("a block that does not return")

    main = functions["main"].regions[0].blocks[0]
    walk(main, [frozenset()] * len(main.arguments), {})
    return sorted(found)


# Four products forward; backward one of each layer's input, but for the first, and one of its kernel. A kernel's
# gradient needs the inputs' of the layers above.
LAST_LARGE, FIRST_LARGE, ALL = 4 + 1 + 1, 4 + 2 + 1, 4 + 3 + 4
ON_UPDATES = "--config.reducer_on=updates"


@pytest.mark.parametrize(
    "overrides",
    [
        ("mean",),
        ("adasum", ON_UPDATES),
        ("sum", ON_UPDATES),
        ("adasum",),
    ],
)
def test_on_gpus_a_large_leaf_waits_for_no_layer_before_it(overrides):
    found = products_before_collectives(lowered(*overrides, platform="cuda"))
    assert found[0] == LAST_LARGE and FIRST_LARGE in found


@pytest.mark.parametrize(
    ("overrides", "platform", "first"),
    [(("adasum",), "cpu", FIRST_LARGE), (("mean", "--config.clip_norm=1.0"), "cuda", ALL)],
)
def test_the_check_sees_what_waits(overrides, platform, first):
    """On a CPU batches of Adasum wait for each other; a norm of the whole gradient needs all of it."""
    found = products_before_collectives(lowered(*overrides, platform=platform))
    assert found[0] == first


# ---- the switch --------------------------------------------------------------------------------------------------


def test_a_default_leaves_what_the_user_says(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1 --xla_two_and_more=2")
    for name in ("xla_one", "xla_two", "xla_two"):
        set_xla_default(name, "3")
    assert os.environ["XLA_FLAGS"] == "--xla_one=1 --xla_two_and_more=2 --xla_two=3"
    monkeypatch.delenv("XLA_FLAGS")
    set_xla_default("xla_one", "1")
    assert os.environ["XLA_FLAGS"] == "--xla_one=1"


def test_a_file_of_options_is_all_that_xla_reads(monkeypatch):
    """Words after its name would become part of it, and XLA would end the process."""
    monkeypatch.setenv("XLA_FLAGS", "options.txt")
    set_xla_default("xla_one", "1")
    assert os.environ["XLA_FLAGS"] == "options.txt" and not compile_quickly()


@pytest.mark.parametrize("config", ["digits", "mnist_adasum"])
def test_a_quick_compile_gives_the_same_parameters(config, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert not compile_quickly()
    monkeypatch.delenv("XLA_FLAGS")
    init = jax.jit(make_setup(flags.load(f"{ROOT}/configs/{config}.py"), open_data=make_or_assume).init_worker).lower()
    quick, slow = (init.compile(options)() for options in (compile_quickly(), {"xla_backend_optimization_level": 3}))
    assert same_bits(quick, slow)


def test_the_switch_sets_it(monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert train_py("--latency_hiding", "--config=nope.py") == 2
    assert "latency" not in os.environ["XLA_FLAGS"]
    assert train_py("--latency_hiding", "--config=configs/digits.py:smoke", "--dry_run") == 0
    assert f"--{LATENCY_HIDING}=true" in os.environ["XLA_FLAGS"].split()
    assert "compiled for" in capsys.readouterr().out


def test_the_switch_comes_before_jax_and_jaxlib_knows_it():
    """An option that jaxlib does not know ends the process, if it is set in time."""
    arguments = ["train.py", "--config=configs/digits.py:smoke", "--dry_run"]

    def run(name):
        program = (
            f"import sys, train\nfrom parallel.backend import set_xla_default\nset_xla_default({name!r}, 'true')\n"
        )
        return python("-c", f"{program}sys.exit(train.main({arguments!r}))")

    assert run(LATENCY_HIDING).returncode == 0
    unknown = run("xla_gpu_enable_latency_hidding_scheduler")
    assert unknown.returncode and "latency_hidding" in unknown.stderr
