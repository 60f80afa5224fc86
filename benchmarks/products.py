"""A product of matrices that are cut over eight devices: this project's, and XLA's automatic sharding of the same.

    python -m benchmarks.products

Forward and backward of a 2,048 x 1,024 by 1,024 x 1,024 product over 2 x 2 x 2 virtual devices of a CPU, in turns. Both
begin and end with the same blocks on the same devices; which collectives the second takes is the compiler's choice. The
devices share the machine's cores and its memory, where each of 8 accelerators would have its own, with links between
them. Bytes are counted in the compiled programs.
"""

import sys
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
from jax import numpy as jnp

import tensor_parallel
from benchmarks.kit import command, hlo, step_loop, taking_turns
from benchmarks.kit.command import Found, Log
from benchmarks.kit.result import Measured
from parallel import configure_cpu_devices, keep_freed_memory

Q, D = 2, 2
ROWS, INNER, COLUMNS = 2048, 1024, 1024
CALLS = 3  # a turn; the devices compute one call after another
OURS, AUTOMATIC = "tensor_parallel.matmul", "automatic sharding"


def programs(rows: int, inner: int, columns: int) -> tuple[dict[str, Any], tuple[jax.Array, ...]]:
    """Returns both compiled programs, (x, a, slope) -> (product, gradients of x and a), and their arguments."""
    mesh = tensor_parallel.make_mesh(q=Q, d=D)
    of_x, of_a = tensor_parallel.activation_spec(2), tensor_parallel.param_spec(jax.ShapeDtypeStruct((1, 1), float))
    in_specs, out_specs = (of_x, of_a, of_x), (of_x, of_x, of_a)
    placed = lambda specs: tuple(jax.NamedSharding(mesh, spec) for spec in specs)  # noqa: E731
    shapes = (rows, inner), (inner, columns), (rows, columns)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    drawn = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    given = tuple(map(jax.device_put, drawn, placed(in_specs)))

    def both_ways(multiply):
        def run(x, a, slope):
            y, pull = jax.vjp(multiply, x, a)
            return y, *pull(slope)

        return run

    ours = jax.jit(jax.shard_map(both_ways(tensor_parallel.matmul), mesh=mesh, in_specs=in_specs, out_specs=out_specs))
    automatic = jax.jit(both_ways(jnp.matmul), in_shardings=placed(in_specs), out_shardings=placed(out_specs))
    return {name: f.lower(*given).compile() for name, f in ((OURS, ours), (AUTOMATIC, automatic))}, given


def benchmark(*, repeats: int, log: Log, rows: int = ROWS, inner: int = INNER, columns: int = COLUMNS) -> Found:
    """Counts bytes, then measures both programs in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      rows: of the activations.
      inner: columns of the activations.
      columns: of the matrix.
    """
    keep_freed_memory()
    configure_cpu_devices(Q * Q * D, num_devices=Q * Q * D)
    log("compiling")
    compiled, given = programs(rows, inner, columns)

    def turn(program: Any) -> float:
        def calls() -> None:
            for _ in range(CALLS):
                jax.block_until_ready(program(*given))

        return taking_turns.timed(calls) / CALLS

    turns = {name: lambda program=program: turn(program) for name, program in compiled.items()}
    seconds = taking_turns.in_turns(turns, repeats=repeats, log=log)
    where = f"{D} x {Q} x {Q} devices"
    found = [Measured(f"{OURS} over {AUTOMATIC}, time, {where}", taking_turns.ratios(seconds, OURS, AUTOMATIC))]
    for name, program in compiled.items():
        sent, temporary = hlo.traffic(program.as_text()).bytes_per_worker, program.memory_analysis().temp_size_in_bytes
        found.append(Measured(f"{name}, {where}", [1e3 * s for s in seconds[name]], unit="ms"))
        found.append(Measured(f"{name}, sent by a device, {where}", [sent / 1e6], unit="MB"))
        found.append(Measured(f"{name}, temporary memory of a device, {where}", [temporary / 1e6], unit="MB"))
    return Found(found, step_loop.devices(Q * Q * D))


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="products", doc=__doc__, argv=sys.argv[1:], repeats=15)
