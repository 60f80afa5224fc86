"""The cost of Adasum against that of the sum: of whole steps over a network, and of one reduction without one."""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import runs as run_folders
from experiments.claims.adasum_cost.hosts import NUM_HOSTS, TwoHosts, run
from experiments.study import datasets, figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.verdict import Verdict, bound, decide, holm, paired, untested
from launch.children import ROOT, Children, last_line

SIZES = {"smoke": (10_000,), "laptop": (10_000, 100_000, 1_000_000, 10_000_000)}
REPEATS = {"smoke": 3, "laptop": 15}
KERNEL_SEEDS = {"smoke": 1, "laptop": 3}
NUM_WORKERS = 8
LINKS = {"smoke": (1,), "laptop": (1, 10)}  # gigabits a second
STEPS = {"smoke": 10, "laptop": 100}
LINK_SEEDS = {"smoke": 1, "laptop": 8}
LOGGED = 10  # how often a run records its speed
PORT = 8476
# The bytes are counters of a link, over which TCP acknowledges and repeats as it sees fit.
MACHINE = "adasum_seconds sum_seconds time_ratio mean_ratio adasum_bytes sum_bytes cpu_count device_kind"
MOST_TIME, MOST_BYTES = 1.1, 1.05  # over those of the sum
PER_SIZE = ["num_floats", "time_ratio", "bytes_ratio", "mean_ratio", "adasum_seconds", "sum_seconds"]


def _measure(**labels: Any) -> dict[str, Any]:
    return _on_devices(**labels) if "sizes" in labels else _over_link(**labels)


def _on_devices(*, sizes: list[int], repeats: int, seed: int) -> dict[str, Any]:
    """Measures a reduction by Adasum and one by the sum in turns, in a process of its own with eight devices."""
    del seed  # distinguishes repetitions
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        flags = (
            "--layouts=resnet50_like --reducers=adasum,sum --max_seconds=120 "
            f"--sizes={','.join(map(str, sizes))} --repeats={repeats} --workers={NUM_WORKERS} --devices={NUM_WORKERS}"
        )
        run([sys.executable, "-m", "benchmarks.reducers", *flags.split(), f"--json={found}"], cwd=ROOT)
        return digest(json.loads(found.read_text()))


def digest(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of Adasum and of the sum in the benchmark's JSON, as lists over the sizes.

    Ratios are of calls of the same round, so that a machine that is slow for a while slows both.

    Raises:
      ValueError: one line, if a reducer was not measured.
    """
    sizes: dict[str, dict[str, Any]] = {}
    for one in found["measured"]:
        if one["missing"]:
            raise ValueError(f"{one['name']}: {one['missing']}")
        what, _, where = one["name"].partition(", ")
        sizes.setdefault(where, {})[what] = np.array(one["values"])
    lines = []
    for each in sizes.values():
        over_mean = np.stack([each["adasum over mean"], each["sum over mean"]], axis=1)
        adasum, added = (over_mean * each["mean"].reshape(-1, 2)).T  # a round calls adasum, mean, sum, mean
        lines.append(
            {
                "num_floats": int(each["gradient"][0]),
                "time_ratio": float(np.median(adasum / added)),
                "bytes_ratio": float(each["adasum sends"][0] / each["sum sends"][0]),
                "adasum_seconds": float(np.median(adasum)),
                "sum_seconds": float(np.median(added)),
                "mean_ratio": float(np.median(each["adasum over mean"])),
            }
        )
    machine = found["environment"]
    devices = machine["devices"]
    own = {"num_devices": len(devices), "device_kind": devices[0], "cpu_count": machine["cpu_count"]}
    return pd.DataFrame(lines).to_dict("list") | own


def _over_link(*, gigabits: float, data: str, steps: int, seed: int) -> dict[str, Any]:
    """Trains with each reducer, as two processes on hosts of their own; returns seconds and sent bytes of a step.

    Every other seed begins with the other reducer, so that neither always has the warmer machine.
    """
    found: dict[str, Any] = {"cpu_count": os.cpu_count()}
    order = ("sum", "adasum") if seed % 2 == 0 else ("adasum", "sum")
    with TwoHosts(bits_per_second=1e9 * gigabits) as hosts:
        for reducer in order:
            before = _bytes_sent(hosts)
            flags = _flags(reducer, data=data, steps=steps, seed=seed)
            with tempfile.TemporaryDirectory() as folder:
                _train(hosts, Path(folder), flags=flags)
                records = run_folders.read(Path(folder) / "run" / "metrics.jsonl")
            found[f"{reducer}_seconds"] = step_seconds(records)
            sent = _bytes_sent(hosts) - before
            found[f"{reducer}_bytes"] = sent / NUM_HOSTS / steps
    return found


def _flags(reducer: str, *, data: str, steps: int, seed: int) -> list[str]:
    """Returns flags of train.py: the recipe of Adasum's authors for one worker a host, with gradients reduced."""
    overrides = {
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
        processes = []
        for host in range(NUM_HOSTS):
            inside = hosts.inside(host, [*command, f"--process_id={host}"])
            own = cores[host::NUM_HOSTS]
            processes.append(children.start(inside, output=output, environment=environment, cores=own))
        if any([children.wait(process) for process in processes]):
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


def frame(rows: Rows) -> Frame:
    """Returns whole steps over each link, and one reduction of each size on devices that share a memory."""
    df = frames.frame(rows, "data", "gigabits", *PER_SIZE, "adasum_bytes", "sum_bytes")
    links = df[df["gigabits"].notna()]
    kernels = df[df["num_floats"].notna()].explode(PER_SIZE)
    what = [f"{gigabits:g} Gb/s" for gigabits in links["gigabits"]]
    what += [f"{floats:,} floats" for floats in kernels["num_floats"]]
    both = pd.concat([links, kernels], ignore_index=True).assign(what=what)
    for reducer in ("adasum", "sum"):
        both[f"{reducer}_ms"] = 1e3 * both[f"{reducer}_seconds"].astype(float)
    times = both["adasum_ms"] / both["sum_ms"]
    sent = both["adasum_bytes"] / both["sum_bytes"]
    return both.assign(
        time_ratio=both["time_ratio"].astype(float).fillna(times),
        bytes_ratio=both["bytes_ratio"].astype(float).fillna(sent),
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    links = [f"{link:g} Gb/s" for link in LINKS[df["scale"].iloc[0]]]
    groups = frames.groups(df, "what", "time_ratio")
    if not groups.keys() & set(links):
        return untested("The rule needs whole steps over a link.")
    tests = [paired("Adasum over the sum", groups[at], "below", MOST_TIME, digits=3, at=at) for at in links]
    sent = frames.groups(df, "what", "bytes_ratio")
    bounds = []
    for at in links:
        words = f"the mean of the bytes that Adasum sends over those of the sum, {at},"
        bounds.append(bound(words, sent[at].mean(skipna=False), most=MOST_BYTES, digits=3))
    return decide(holm(*tests), *bounds)


def _facts(df: Frame) -> Facts:
    users = "about 10 times slower than the sum, 8 V100 a node [READ: Horovod's issue 1760]"
    facts: Facts = {"what users say": ("not tried: no cluster", users)}
    links = df[df["gigabits"].notna()]
    kernels = df[df["num_floats"].notna()]
    for at, same in links.groupby("what"):
        added = 100 * (1 - same["sum_ms"] / same["adasum_ms"])
        facts[f"share of the step that Adasum adds, {at}"] = frames.text(added, 1, "%")
        facts[f"MB that a host sends in a step with Adasum, {at}"] = frames.text(same["adasum_bytes"] / 1e6)
    most = kernels[kernels["num_floats"] == kernels["num_floats"].max()]
    if len(most):
        facts["time of one reduction over that of the mean, most floats"] = frames.text(most["mean_ratio"])
    return facts


def _draw(df: Frame, figure: Figure) -> None:
    times = df.rename(columns={"sum_ms": "sum", "adasum_ms": "Adasum"})
    labels = {"gigabits": "gigabits a second, a whole step on two hosts", "num_floats": "floats, one reduction"}
    looks: dict[str, Any] = {
        "gigabits": {"dots": True, "ylim": (0, None)},
        "num_floats": {"yscale": "log"},
    }
    known = [key for key in labels if times[key].notna().any()]
    panels = figure.subplots(1, len(known), squeeze=False)[0]
    for axes, key in zip(panels, known, strict=True):
        own = times[times[key].notna()].astype({key: float})
        each = own.melt(key, ["sum", "Adasum"], "reducer", "ms")
        figures.values(axes, each, x=key, y={"ms": "milliseconds"}, by="reducer", xscale="log", **looks[key])
        axes.set_xlabel(labels[key])


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    images = datasets.image_set(scale)["data.name"]
    runs = []
    for seed in range(KERNEL_SEEDS[scale]):
        runs.append({"sizes": list(SIZES[scale]), "repeats": REPEATS[scale], "seed": seed})
    for gigabits in LINKS[scale]:
        for seed in range(LINK_SEEDS[scale]):
            runs.append({"gigabits": gigabits, "data": images, "steps": STEPS[scale], "seed": seed})
    return [Run(labels=labels) for labels in runs]


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.04, "laptop": 0.35},
    runs=_runs,
    measure=_measure,
    timings=MACHINE.split(),
    frame=frame,
    model=f"LeNet-5 on {NUM_HOSTS} hosts",
    rests_on=lambda df: df[df["gigabits"].notna()],
    labels=["what"],
    values={
        "sum, ms": Value("sum_ms"),
        "Adasum, ms": Value("adasum_ms"),
        "time over the sum's": Value("time_ratio", 3),
        "bytes over the sum's": Value("bytes_ratio", 4),
    },
    paper={
        "1 Gb/s": "almost as efficient as summing [READ: abstract, arXiv]",
        "10 Gb/s": "the bytes of summing but for O((log n)^2) small messages [DERIVED: halving and doubling]",
        "9,998,105 floats": "close to the sum's [MEM-lo: a figure of latency, 16 nodes of 4 V100]",
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
