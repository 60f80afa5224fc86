"""What a worker of several devices needs, with its state whole and in parts, compiled for devices that are not here.

    python -m benchmarks.nodes --json=out/bench/nodes.json
    python -m benchmarks.nodes --only="bert, lamb" --targets=h100:8x8

BERT-Large with LAMB and with Adam, whose updates Adasum combines: 8 workers of 8 devices, 128 sequences of 128 tokens a
worker; a transformer of 1.3 billion parameters with DiLoCo: 8 workers of 16 chips, 64 sequences of 1,024 bytes a
worker. Each with ``config.partition`` none, state and parameters. Nothing is run. Columns are for one device and step:
what it holds between steps (states, parameters, a batch), all memory, and the bytes that it sends, beside the formula:

    none         2 (k - 1) / k G inside of a node, 2 (n - 1) / n G between n nodes of k devices
    state        (1 + u) (k - 1) / k G inside, for gradients and updates; 2 (n - 1) / n G / k between
    parameters   (1 + 2 c) (k - 1) / k G inside, for gradients and twice for parameters; the same between

G is the bytes of the gradient. Updates are gathered once, u = 1; with DiLoCo a worker's own are, and in a step in which
workers communicate, as here, those of the outer optimizer: u = 2. Parameters are gathered as the model computes with
them: c is 1/2 for bfloat16, to which XLA casts them before it gathers them. A loop over blocks counts once for each of
them. It needs requirements-compilers.txt; rows that the same clean commit has written are not compiled again.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks import compiled
from benchmarks.compiled import Row
from benchmarks.kit import command, step_loop
from benchmarks.kit.contenders import GIB
from benchmarks.kit.result import Measured
from parallel import Layout
from reducers import targets
from reducers.leaves import num_bytes
from training import dry_run

PARTITIONS = ("none", "state", "parameters")
CAST = 1 / 2  # bfloat16 over float32, in all cases
FIRST, LAST = "holds, GiB", "least time, ms"


class Case(NamedTuple):
    """A step to compile.

    Attributes:
      config: a config of this repository.
      overrides: its changed keys.
      targets: the devices.
      updates: how many a worker takes in a step: its own, and those of all workers.
    """

    config: str
    overrides: Sequence[str]
    targets: Sequence[str]
    updates: int = 1


_BERT = ("batch_size_per_worker=128", "accumulation.count=1", "devices_per_worker=8", "num_workers=8")
_LARGE = (
    *("model.num_layers=26", "model.width=2048", "model.num_heads=16", "model.max_length=1024"),
    *("model.dtype=bfloat16", "model.remat=blocks", "data.sequence_length=1024"),
    *("batch_size_per_worker=64", "devices_per_worker=16", "num_workers=8"),
)
CASES = {
    "bert, lamb": Case("bert_lamb:gpu", _BERT, ("h100:8x8", "v5p:4x4x4")),
    "bert, adam": Case("bert_adam:gpu", _BERT, ("h100:8x8", "v5p:4x4x4")),
    "transformer, diloco": Case("diloco", _LARGE, ("v5p:4x4x8",), updates=2),
}


def row(name: str, case: Case, target_name: str, partition: str) -> Row:
    """Returns the row of a step on a target."""
    target = targets.find(target_name)
    title = f"{target.name}, {name}: {partition}"

    def make(log: command.Log) -> list[Measured]:
        overrides = [*case.overrides, "mapping=shard_map", f"partition={partition}"]
        with target.compiling() as devices:
            setup = step_loop.load(case.config, overrides)
            each, workers = setup.config.devices_per_worker, setup.config.num_workers
            layout = Layout.of(workers, num_devices=target.num_devices, devices=devices, devices_per_worker=each)
            found = dry_run.compile_programs(setup, layout, target, say=lambda line: log(f"  {line}"))
        ((program,),) = [found.values()]
        needs = program.needs
        gathered = {"none": 1, "state": case.updates, "parameters": 2 * CAST}[partition]
        sent = formula(num_bytes(setup.params), each, workers, partition=partition, gathered=gathered)
        columns = {
            FIRST: needs.arguments / GIB,
            "memory, GiB": needs.total_bytes / GIB,
            "sends, MB": sum(sent for _, sent in needs.collectives.values()) / 1e6,
            "by the formula, MB": sent / 1e6,
            "collectives": needs.num_collectives,
            "GB through memory": needs.memory_bytes / 1e9,
            "over the links, ms": 1e3 * needs.link_seconds,
            "compiled in, s": needs.compile_seconds,
            LAST: 1e3 * needs.least_seconds,
        }
        return [compiled.cell(title, column, value) for column, value in columns.items()]

    return Row(title, FIRST, LAST, make)


def formula(num_bytes: float, k: int, n: int, *, partition: str, gathered: float = 1) -> float:
    """Returns the bytes that a device sends in a step.

    Args:
      num_bytes: those of the gradient, G.
      k: devices of a worker.
      n: workers.
      partition: what lies in parts.
      gathered: what the devices of a worker gather after they have summed their parts, in G.

    >>> formula(64.0, 8, 8, partition="none"), formula(64.0, 8, 8, partition="state")
    (224.0, 126.0)
    """
    inside, between = (k - 1) / k * num_bytes, 2 * (n - 1) / n * num_bytes
    return (1 + gathered) * inside + (between if partition == "none" else between / k)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose rows."""
    parser.add_argument("--only", help=f"one of {'; '.join(CASES)} (default: all)")
    parser.add_argument("--targets", help="devices, separated by commas (default: those of the docstring)")


def read_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of ``compiled.benchmark``.

    Raises:
      ValueError: one line, if a value is not allowed, or a compiler is missing.
    """
    if arguments.only is not None and arguments.only not in CASES:
        raise ValueError(f"only={arguments.only!r}: must be one of {'; '.join(CASES)}")
    names = [arguments.only] if arguments.only is not None else list(CASES)
    asked = None if arguments.targets is None else arguments.targets.split(",")
    rows = []
    for name in names:
        for target_name in asked or CASES[name].targets:
            compiled.find_target(target_name)
            rows += [row(name, CASES[name], target_name, partition) for partition in PARTITIONS]
    return {"rows": rows}


main = functools.partial(compiled.compile_rows, name="nodes", doc=__doc__, add_flags=add_flags, read_flags=read_flags)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
