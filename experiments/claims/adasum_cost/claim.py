"""The cost of Adasum against that of the sum: of whole steps over a network, and of one reduction without one."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import runs as run_folders
from experiments.claims.adasum_cost.hosts import NUM_HOSTS, TwoHosts
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Compare,
    Group,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale
from launch.children import POLL_SECONDS, ROOT, Children, last_line

REDUCERS = {"sum": "sum", "adasum": "Adasum"}
# One reduction, on devices that share a memory.
SIZES: dict[Scale, tuple[int, ...]] = {"smoke": (10_000,), "laptop": (10_000, 100_000, 1_000_000, 10_000_000)}
REPEATS = {"smoke": 3, "laptop": 15}
KERNEL_SEEDS = {"smoke": 1, "laptop": 3}
NUM_WORKERS = 8
# Whole steps, of two processes with a link between them.
LINKS: dict[Scale, tuple[int, ...]] = {"smoke": (1,), "laptop": (1, 10)}  # gigabits a second
STEPS = {"smoke": 10, "laptop": 100}
LINK_SEEDS = {"smoke": 1, "laptop": 8}
LOGGED = 10  # times in a run that its speed is recorded
PORT = 8476
MOST_TIME, MOST_BYTES = 1.1, 1.05  # over those of the sum
# Key of a row, digits, and words.
KERNEL = (
    ("time_ratio", 2, "time over that of the sum"),
    ("bytes_ratio", 4, "bytes over those of the sum"),
    ("mean_ratio", 2, "time over that of the mean"),
)


def _measure(**labels: Any) -> dict[str, Any]:
    return _on_devices(**labels) if "sizes" in labels else _over_link(**labels)


def _on_devices(*, sizes: list[int], repeats: int, seed: int) -> dict[str, Any]:
    """Measures one reduction by each in turns, in a process of its own, as it needs eight devices."""
    del seed  # distinguishes repetitions
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [
            *(sys.executable, "-m", "benchmarks.reducers", "--layouts=resnet50_like", "--reducers=adasum,sum"),
            *(f"--sizes={','.join(map(str, sizes))}", f"--workers={NUM_WORKERS}", f"--devices={NUM_WORKERS}"),
            *(f"--repeats={repeats}", "--max_seconds=120", f"--json={found}"),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            line = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            raise ValueError(f"{' '.join(command[1:])}: {line}")
        return digest(json.loads(found.read_text()))


def digest(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of Adasum and of the sum in the benchmark's JSON, as lists over the sizes.

    Ratios are of calls of the same round, so that a machine that is slow for a while slows both.

    Raises:
      ValueError: one line, if one was not measured.
    """
    rows = found["rows"]
    if refused := [row for row in rows if row["refused"]]:
        raise ValueError(f"{refused[0]['reducer']}, {refused[0]['num_floats']} floats: {refused[0]['refused']}")
    adasum, added = ([row for row in rows if row["reducer"] == reducer] for reducer in ("adasum", "sum"))
    pairs = list(zip(adasum, added, strict=True))
    ratios = [[x / y for x, y in zip(a["seconds"], b["seconds"], strict=True)] for a, b in pairs]
    return {
        "num_floats": [a["num_floats"] for a, _ in pairs],
        "time_ratio": [statistics.median(of_size) for of_size in ratios],
        "bytes_ratio": [a["traffic"]["bytes_per_worker"] / b["traffic"]["bytes_per_worker"] for a, b in pairs],
        "adasum_seconds": [statistics.median(a["seconds"]) for a, _ in pairs],
        "sum_seconds": [statistics.median(b["seconds"]) for _, b in pairs],
        "mean_ratio": [
            statistics.median(x / y for x, y in zip(a["seconds"], a["baseline_seconds"], strict=True)) for a, _ in pairs
        ],
        "num_devices": found["num_devices"],
        "cpu_count": found["cpu_count"],
        "device_kind": found["device_kind"],
    }


def _over_link(*, gigabits: float, data: str, steps: int, seed: int) -> dict[str, Any]:
    """Trains with each reducer, as two processes on hosts of their own; returns seconds and sent bytes of a step.

    Every other seed begins with the other reducer, so that neither always has the warmer machine.
    """
    found: dict[str, Any] = {"cpu_count": os.cpu_count()}
    with TwoHosts(bits_per_second=1e9 * gigabits) as hosts:
        for reducer in list(REDUCERS)[:: 1 if seed % 2 == 0 else -1]:
            before = _bytes_sent(hosts)
            with tempfile.TemporaryDirectory() as folder:
                _train(hosts, Path(folder), flags=_flags(reducer, data=data, steps=steps, seed=seed))
                records = run_folders.read(Path(folder) / "run" / "metrics.jsonl")
            found[f"{reducer}_seconds"] = step_seconds(records)
            found[f"{reducer}_bytes"] = (_bytes_sent(hosts) - before) / NUM_HOSTS / steps
    return found


def _flags(reducer: str, *, data: str, steps: int, seed: int) -> list[str]:
    """Returns flags of train.py: the recipe of Adasum's authors for one worker a host, with gradients reduced."""
    overrides: dict[str, Any] = {
        "data.name": data,
        "num_workers": NUM_HOSTS,
        "reducer.name": reducer,
        "reducer_on": "gradients",
        "schedule.name": "constant",
        "optimizer.learning_rate": 0.001,  # the sum stays finite
        "train_steps": steps,
        "log_every_steps": max(1, steps // LOGGED),
        "eval_every_steps": steps,
        "checkpoint_every_steps": steps,
        "seed": seed,
    }
    return ["--config=configs/mnist_adasum.py", *(f"--config.{key}={value}" for key, value in overrides.items())]


def _train(hosts: TwoHosts, folder: Path, *, flags: Sequence[str]) -> None:
    """Runs train.py on both hosts, each with its share of the cores.

    Raises:
      ValueError: one line, if a process fails.
    """
    command = [sys.executable, str(ROOT / "train.py"), *flags, f"--workdir={folder / 'run'}"]
    command += [f"--coordinator={hosts.addresses[0]}:{PORT}", f"--num_processes={NUM_HOSTS}"]
    cores = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with Children() as children, open(folder / "output", "w+b") as output:
        processes = [
            children.start(
                hosts.inside(host, [*command, f"--process_id={host}"]),
                output=output,
                environment=environment,
                cores=cores[host::NUM_HOSTS],
            )
            for host in range(NUM_HOSTS)
        ]
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):  # the others would wait for it
                children.kill()
            children.forward_signals()
            time.sleep(POLL_SECONDS)
        if any(process.returncode for process in processes):
            raise ValueError(f"train.py over a link: {last_line(output) or 'it said nothing'}")


def _bytes_sent(hosts: TwoHosts) -> int:
    return sum(map(hosts.bytes_sent, range(NUM_HOSTS)))


def step_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    """Returns the median seconds of a whole step over a run's records; the first, which compiles, does not count.

    >>> records = [{"kind": "train", "steps_per_second": speed} for speed in (0.1, 4.0, 5.0, 2.0)]
    >>> step_seconds(records)
    0.25
    """
    speeds = [record["steps_per_second"] for record in records if record["kind"] == "train"]
    return 1 / statistics.median(speeds[1:])


def _kernel(rows: Rows) -> list[Row]:
    return [row for row in rows if "num_floats" in row]


def _linked(rows: Rows, gigabits: float) -> list[Row]:
    return ask.select(rows, gigabits=gigabits)


def _links(rows: Rows) -> list[float]:
    return ask.distinct(rows, "gigabits")


def _over_sum(rows: Rows, quantity: str) -> list[float]:
    """Returns a quantity of a step with Adasum over that with the sum, run by run."""
    return [row[f"adasum_{quantity}"] / row[f"sum_{quantity}"] for row in rows]


def _share(row: Row) -> float:
    """Returns the share of the step that Adasum adds, in percent."""
    return 100 * (1 - row["sum_seconds"] / row["adasum_seconds"])


def _findings(rows: Rows) -> list[Finding]:
    found = []
    as_efficient = Quoted("almost as efficient as summing", "READ: abstract, arXiv")
    same_bytes = Quoted("1, but for O((log n)^2) small messages", "DERIVED: halving and doubling")
    for gigabits in _links(rows):
        same, link = _linked(rows, gigabits), f"{gigabits:g} Gb/s"
        time, sent = (Sample.of(_over_sum(same, quantity), digits=3) for quantity in ("seconds", "bytes"))
        added = Sample.of(list(map(_share, same)), digits=1, unit="%")
        found += [
            Finding(f"whole step with Adasum over that with the sum, {link}", ours=time, paper=as_efficient),
            Finding(f"share of the step that Adasum adds, {link}", ours=added),
            Finding(f"bytes on the wire, over those of the sum, {link}", ours=sent, paper=same_bytes, paper_number=1),
        ]
    if kernel := _kernel(rows):
        where = f"one reduction on {kernel[0]['num_devices']} devices that share a memory"
        largest = f"{kernel[0]['num_floats'][-1]:,} floats"
        for key, digits, words in KERNEL:
            ours = ask.curve(kernel, key, digits=digits)[-1]
            found.append(Finding(f"{where}, {words}, {largest}", ours=ours))
    slower = Quoted("about 10 times slower than the sum, 8 V100 a node", "READ: Horovod's issue 1760")
    return [*found, Finding("what users say", ours="not tried: no cluster", paper=slower)]


def _basis(rows: Rows) -> Basis:
    linked = [row for row in rows if "gigabits" in row]
    return ask.basis(linked or rows, model=f"LeNet-5 on {NUM_HOSTS} hosts" if linked else "no model")


def _paper_table(rows: Rows) -> Table:
    if not (kernel := _kernel(rows)):
        return Table((), ())
    close = Quoted("close to the sum's", "MEM-lo, a figure")
    columns = [ask.curve(kernel, f"{reducer}_seconds", digits=2, scale=1e3) for reducer in REDUCERS]
    lines = {
        f"{size:,}": [Cell(None, added), Cell(close, adasum)]
        for size, added, adasum in zip(kernel[0]["num_floats"], *columns, strict=True)
    }
    note = (
        "The paper has a figure of latency over tensor sizes: 64 tensors, 16 nodes of 4 V100, 100 Gb/s InfiniBand, "
        f"against NCCL's sum (MEM-lo). Ours: {kernel[0]['num_devices']} devices of one machine that share its memory."
    )
    return paper_table.table("Floats", [f"{label}, ms" for label in REDUCERS.values()], lines, note=note)


def _table(rows: Rows) -> Table:
    cells = []
    for gigabits in _links(rows):
        same = _linked(rows, gigabits)
        times = [Sample.of([1e3 * row[f"{reducer}_seconds"] for row in same], digits=1) for reducer in REDUCERS]
        sent = [Sample.of([row[f"{reducer}_bytes"] / 1e6 for row in same], digits=2) for reducer in REDUCERS]
        cells.append([f"{gigabits:g} Gb/s", *map(str, (*times, *sent))])
    header = [f"{label}, {what}" for what in ("ms a step", "MB a step") for label in REDUCERS.values()]
    return Table(["Link", *header], cells, "Median seconds of a run's steps; bytes that a host sends, headers and all.")


def _draw(rows: Rows, figure: Figure) -> None:
    steps, times = figure.subplots(1, 2)
    links, width = _links(rows), 0.35
    for position, (reducer, label) in enumerate(REDUCERS.items()):
        look: Any = {"color": drawing.COLOURS[position], "label": label}
        if links:
            samples = [Sample.of([1e3 * row[f"{reducer}_seconds"] for row in _linked(rows, link)]) for link in links]
            xs = [i + (position - 0.5) * width for i in range(len(links))]
            means, errors = [sample.mean for sample in samples], [sample.std for sample in samples]
            steps.bar(xs, means, width, yerr=errors, capsize=3, hatch="//" if position else "", **look)
        if kernel := _kernel(rows):
            curve = ask.curve(kernel, f"{reducer}_seconds", scale=1e3)
            drawing.band(times, kernel[0]["num_floats"], curve, position=position, label=label)
            times.set(xscale="log", yscale="log")
    drawing.ticks(steps, {i: f"{link:g} Gb/s" for i, link in enumerate(links)})
    steps.set(title="a whole step, two hosts", ylabel="milliseconds")
    steps.margins(y=0.3)  # room for the legend
    times.set(title="one reduction, a shared memory", xlabel="floats of a gradient", ylabel="milliseconds")
    for axes in (steps, times):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    images = datasets.image_set(scale)["data.name"]
    kernel = {"sizes": list(SIZES[scale]), "repeats": REPEATS[scale]}
    links = [{"gigabits": gigabits, "data": images, "steps": STEPS[scale]} for gigabits in LINKS[scale]]
    return [
        *(Run(labels={**kernel, "seed": seed}) for seed in range(KERNEL_SEEDS[scale])),
        *(Run(labels={**link, "seed": seed}) for link in links for seed in range(LINK_SEEDS[scale])),
    ]


TIMES = Measure(
    words="the time of a step with Adasum over that with the sum",
    values=lambda rows: _over_sum(rows, "seconds"),
    digits=3,
)


def _slower(gigabits: float) -> list[Compare | Bound]:
    """Returns what the rule asks of whole steps over a link."""
    link = f"{gigabits:g} Gb/s"
    return [
        Compare(
            ours=Group("Adasum over the sum", TIMES, lambda rows: _linked(rows, gigabits)),
            is_="below",
            theirs=MOST_TIME,
            at=link,
        ),
        Bound(
            words=f"the mean of the bytes that Adasum sends over those of the sum, {link},",
            values=lambda rows: [statistics.fmean(_over_sum(_linked(rows, gigabits), "bytes"))],
            most=MOST_BYTES,
            digits=3,
        ),
    ]


RULE = Rule(
    setting="in whole steps of LeNet-5 on two hosts, run by run",
    needs=[
        Need(
            "there are no whole steps over a link",
            lambda rows: "" if _links(rows) else "The rule needs whole steps over a link.",
        )
    ],
    parts=lambda scale: [part for gigabits in LINKS[scale] for part in _slower(gigabits)],
    remark="The cost of one reduction on devices that share a memory is measured apart, and is no part of the rule.",
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("77e85989853e", "d769f05fae62"),
    hours={"smoke": 0.04, "laptop": 0.35},
    runs=_runs,
    measure=_measure,
    timings=(
        *("time_ratio", "adasum_seconds", "sum_seconds", "mean_ratio", "cpu_count", "device_kind"),
        *("adasum_bytes", "sum_bytes"),  # counters of a link, over which TCP acknowledges and repeats as it sees fit
    ),
    findings=_findings,
    basis=_basis,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
