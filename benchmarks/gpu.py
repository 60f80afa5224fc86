"""One accelerator: workers as lanes against one large batch and against PyTorch, compiling, memory and whole runs.

    python -m benchmarks gpu                                       # make bench-gpu; less than 9 minutes on an H100
    python -m benchmarks gpu --only=resnet50,bert --profile=out/profile
    python -m benchmarks gpu --size=tiny --repeats=1               # small models of the same kinds, on any machine

Each contender is a process of its own and has its own share of the device's memory. Programs are compiled side by side
into an empty folder, and found there by the processes that are timed; each turn has the device alone. All data are made
up, and lie on the device. A step is timed from the feed to the numbers on the host. Ratios are of examples per second,
above 1 where the first is faster, unless they are said to be of seconds. Peak memory is the most that a contender's
process has held, compiling included. PyTorch is measured in the same rounds where it and torchvision or transformers
are installed. Results are written after each part; with `--only`, the other parts of an earlier run on the same commit
and device are kept.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import importlib.util
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks import command, loops, measured, rounds, whole_runs
from benchmarks.measured import Measured, Target
from launch.children import ROOT

Size = Literal["full", "tiny"]
SIZES: tuple[Size, ...] = ("full", "tiny")
JSON = Path("out/bench/gpu.json")
LIMIT_SECONDS = 540.0
REPEATS = 5
GIB = 2**30

_ALL_SHARES = 0.96  # of the memory, for the processes that are alive together; their contexts take the rest
_PEERS = ("torch", "torchvision", "transformers")


# ---- contenders and rows -----------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """A program that takes turns.

    Attributes:
      name: a description, unique within its part.
      line: the line by which ``benchmarks.groups`` makes it, or the arguments of ``benchmarks.torch_twins``.
      examples: the number of examples in a step, or in an asynchronous update.
      share: the share of the device's memory that it may take; that of PyTorch is an estimate.
      packages: the packages of PyTorch that it needs; none for one of ours.
    """

    name: str
    line: str
    examples: int
    share: float
    packages: tuple[str, ...] = ()


class Taken(NamedTuple):
    """The measurements of a contender.

    Attributes:
      contender: what was measured.
      seconds: the seconds of a step in each round; none if it was compiled alone.
      peak_bytes: the most bytes that it held; NaN if the device does not say.
      compile_seconds: the seconds from the trace of its step to its programs; PyTorch's are those of the first step.
    """

    contender: Contender
    seconds: Sequence[float]
    peak_bytes: float
    compile_seconds: float

    @property
    def rates(self) -> list[float]:
        """Examples per second, round by round."""
        return [self.contender.examples / seconds for seconds in self.seconds]


class Row(NamedTuple):
    """A quantity of one or more contenders.

    Attributes:
      name: a description.
      contenders: their names; a missed target is explained by a profile of the first.
      values: what each of them took, in order -> the values of all rounds.
      target: the bound for the median, if there is one.
      unit: of the values.
    """

    name: str
    contenders: tuple[str, ...]
    values: Callable[..., Sequence[float]]
    target: Target | None = None
    unit: str = "x"


class Part(NamedTuple):
    """Contenders that take turns, and what is asked of them.

    Attributes:
      contenders: in the order of their first turn.
      rows: the quantities that compare them.
      examples: what the examples are.
      measure: "turns" times them; "compiling" only compiles them, while nothing else runs; "runs" has none: it times
        whole runs of train.py.
    """

    contenders: tuple[Contender, ...] = ()
    rows: tuple[Row, ...] = ()
    examples: str = "images"
    measure: Literal["turns", "compiling", "runs"] = "turns"


def faster(name: str, above: str, below: str, target: Target | None = None) -> Row:
    """Returns the row of a ratio of examples per second."""

    def values(a: Taken, b: Taken) -> list[float]:
        return [x / y for x, y in zip(a.rates, b.rates, strict=True)]

    return Row(name, (above, below), values, target)


def reduction_share(name: str, whole: str, without: str, target: Target) -> Row:
    """Returns the row of the share of a step that is not in the same step without reduction and update."""

    def values(a: Taken, b: Taken) -> list[float]:
        return [(x - y) / x for x, y in zip(a.seconds, b.seconds, strict=True)]

    return Row(name, (whole, without), values, target, unit="of the step")


def peak(name: str, contender: str, target: Target | None) -> Row:
    """Returns the row of a contender's peak memory."""
    return Row(name, (contender,), lambda a: [a.peak_bytes / GIB], target, unit="GiB")


def compiling(name: str, contender: str, target: Target) -> Row:
    """Returns the row of a contender's seconds of compiling."""
    return Row(name, (contender,), lambda a: [a.compile_seconds], target, unit="s")


# ---- the table ---------------------------------------------------------------------------------------------------

MEAN = ("reducer.name=mean", "reducer_on=gradients")
UPDATES = ("reducer.name=adasum", "reducer_on=updates")
SEVERAL = 8  # steps a call: the default of train.py on a GPU that holds the training data
PEERS = {"resnet50": ("torch", "torchvision"), "bert_large": ("torch", "transformers"), "lenet5": ("torch",)}
SMALL_PEERS = {"resnet50": "tiny_resnet", "bert_large": "tiny_bert", "lenet5": "lenet5"}


class Makers(NamedTuple):
    """Makes contenders of a size.

    Attributes:
      size: "tiny" takes the smallest variants of our configs, small models of PyTorch, and two calls a turn.
      platform: of the device.
    """

    size: Size
    platform: str

    def ours(
        self,
        name: str,
        config: str,
        *overrides: str,
        workers: int,
        batch: int,
        updates: int,
        share: float,
        part: loops.Part = "step",
        steps_per_call: int = 1,
        examples: int | None = None,
    ) -> Contender:
        """Returns a contender of ours.

        Args:
          name: a description.
          config: the config's name.
          *overrides: further keys of the config, "key=value" each.
          workers: W, all of them lanes of one device.
          batch: the examples of a worker.
          updates: the updates of a turn.
          share: the share of the device's memory that it may take.
          part: the part of the step.
          steps_per_call: steps of one call.
          examples: the examples of an update; None for those of all workers.
        """
        variant, count = ("", updates) if self.size == "full" else (":smoke", 2 * steps_per_call)
        sizes = (f"num_workers={workers}", f"batch_size_per_worker={batch}")
        line = " ".join((part, config + variant, f"{count}/{steps_per_call}", *sizes, *overrides))
        return Contender(name, line, examples or workers * batch, share)

    def pytorch(self, name: str, model: str, *flags: str, batch: int, updates: int, share: float) -> Contender:
        """Returns a contender of PyTorch: a model of ``torch_networks``, and further flags of ``torch_twins``."""
        chosen, count = (model, updates) if self.size == "full" else (SMALL_PEERS[model], 2)
        device = "cuda" if self.platform == "gpu" else "cpu"
        line = " ".join((f"--model={chosen} --batch={batch} --steps={count} --device={device}", *flags))
        return Contender(name, line, batch, share, PEERS[model])


class Counts(NamedTuple):
    """The workers and batches of a size."""

    lanes: int
    many: int
    batch: int
    small_batch: int
    bert_lanes: int
    asynchronous: int
    most: int


COUNTS: Mapping[Size, Counts] = {
    "full": Counts(lanes=8, many=32, batch=32, small_batch=16, bert_lanes=4, asynchronous=53, most=212),
    "tiny": Counts(lanes=2, many=4, batch=4, small_batch=2, bert_lanes=2, asynchronous=3, most=6),
}


def make_parts(size: Size, *, platform: str, memory: float = math.nan) -> dict[str, Part]:
    """Returns all parts by name, the most important ones first.

    Args:
      size: of the contenders: "full", or "tiny" for small ones of the same kinds.
      platform: of the device.
      memory: the bytes that a process takes of the device's memory by default; NaN if they are not known.
    """
    make, n = Makers(size, platform), COUNTS[size]
    resnet = _resnet_parts(make, n)
    bert = _bert_parts(make, n)
    (lanes, big) = resnet["resnet50"].contenders[1], bert["bert-adasum"].contenders[0]
    both = tuple(c._replace(name=f"{model}, {c.name}") for model, c in (("ResNet-50", lanes), ("BERT-Large", big)))
    rows = tuple(compiling(f"{c.name}, trace to programs", c.name, Target("<=", 60)) for c in both)
    fits = None if math.isnan(memory) else Target("<=", round(memory / GIB, 1))
    return {
        "compile": Part(both, rows, measure="compiling"),
        **resnet,
        **bert,
        **_small_parts(make, n),
        "fit": _fit(make, n, target=fits),
        "start_up": Part(measure="runs"),
    }


def _resnet_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole, config = n.lanes * n.batch, "imagenet_resnet50"
    one_name, lanes_name, many_name = f"1 x {whole} mean", f"{n.lanes} x {n.batch} mean", f"{n.many} x {n.batch} mean"
    adasum_name, local_name = f"{n.lanes} x {n.batch} Adasum of updates", "the same without reduction and update"
    by_lanes: dict[str, Any] = {"workers": n.lanes, "batch": n.batch, "updates": 20}
    one = make.ours(one_name, config, *MEAN, workers=1, batch=whole, updates=20, share=0.18)
    lanes = make.ours(lanes_name, config, *MEAN, share=0.18, **by_lanes)
    adasum = make.ours(adasum_name, config, *UPDATES, share=0.18, **by_lanes)
    local = make.ours(local_name, config, *UPDATES, share=0.18, part="local", **by_lanes)
    many = make.ours(many_name, config, *MEAN, workers=n.many, batch=n.batch, updates=5, share=0.72)
    flags = ("--precision=bfloat16", "--compile")
    peer = make.pytorch("PyTorch compiled", "resnet50", *flags, batch=whole, updates=20, share=0.36)
    return {
        "resnet50": Part(
            (one, lanes, adasum, peer),
            (
                faster(f"ResNet-50, {lanes_name} over {one_name}", lanes_name, one_name, Target(">=", 0.9)),
                faster(f"ResNet-50, {adasum_name} over {one_name}", adasum_name, one_name, Target(">=", 0.87)),
                faster(f"ResNet-50, {one_name} over PyTorch compiled", one_name, peer.name, Target(">=", 1)),
            ),
        ),
        "resnet50-1024": Part(
            (one, many),
            (
                faster(f"ResNet-50, {many_name} over {one_name}", many_name, one_name, Target(">=", 0.9)),
                peak(f"ResNet-50, {many_name}, peak memory", many_name, Target("<", 40)),
            ),
        ),
        "reduction": Part(
            (adasum, local),
            (
                reduction_share(
                    f"ResNet-50, {adasum_name}, reduction and update", adasum_name, local_name, Target("<=", 0.03)
                ),
            ),
        ),
    }


def _bert_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole, config, plain = 4 * n.batch, "bert_lamb", ("accumulation.count=1", "model.remat=none")
    one_name, lanes_name = f"1 x {whole} LAMB", f"{n.bert_lanes} x {whole // n.bert_lanes} Adasum of LAMB's deltas"
    one = make.ours(one_name, config, *MEAN, *plain, workers=1, batch=whole, updates=10, share=0.42)
    by_lanes: dict[str, Any] = {"workers": n.bert_lanes, "batch": whole // n.bert_lanes, "updates": 10, "share": 0.54}
    lanes = make.ours(lanes_name, config, *UPDATES, *plain, **by_lanes)
    peer_name, flags = "PyTorch eager AdamW", ("--precision=bfloat16",)
    peer = make.pytorch(peer_name, "bert_large", *flags, batch=whole, updates=10, share=0.5)
    return {
        "bert": Part(
            (one, peer),
            (faster(f"BERT-Large, {one_name} over {peer_name}", one_name, peer_name, Target(">=", 1)),),
            "sequences",
        ),
        "bert-adasum": Part(
            (lanes, one),
            (faster(f"BERT-Large, {lanes_name} over {one_name}", lanes_name, one_name, Target(">=", 0.9)),),
            "sequences",
        ),
    }


def _small_parts(make: Makers, n: Counts) -> dict[str, Part]:
    whole = n.many * n.small_batch
    one_name, many_name = f"1 x {whole} mean", f"{n.many} x {n.small_batch} mean"
    often: dict[str, Any] = {"share": 0.06, "steps_per_call": SEVERAL}
    one = make.ours(one_name, "cifar10", *MEAN, workers=1, batch=whole, updates=80, **often)
    many = make.ours(many_name, "cifar10", *MEAN, workers=n.many, batch=n.small_batch, updates=80, **often)
    adasum_name, peer_name, images = f"{n.many} x {n.batch} Adasum of updates", "PyTorch eager", n.many * n.batch
    by_lanes: dict[str, Any] = {"workers": n.many, "batch": n.batch, "updates": 320}
    adasum = make.ours(adasum_name, "mnist_adasum", *UPDATES, **by_lanes, **often)
    peer = make.pytorch(peer_name, "lenet5", batch=images, updates=300, share=0.05)
    waves: dict[str, Any] = {"workers": n.asynchronous, "batch": n.batch, "updates": 106, "share": 0.06}
    batched, dispatched = (
        make.ours(f"lanes={lanes}", "mnist_async_53", f"lanes={lanes}", examples=n.batch, **waves)
        for lanes in ("vmap", "dispatched")
    )
    title = f"MNIST CNN, asynchronous, {n.asynchronous} workers"
    return {
        "resnet20": Part(
            (one, many),
            (faster(f"ResNet-20, {many_name} over {one_name}", many_name, one_name, Target(">=", 0.9)),),
        ),
        "lenet5": Part(
            (adasum, peer),
            (faster(f"LeNet-5, {adasum_name} over {peer_name} at {images}", adasum_name, peer_name, Target(">=", 1)),),
        ),
        "async": Part(
            (batched, dispatched),
            (faster(f"{title}, {batched.name} over {dispatched.name}", batched.name, dispatched.name),),
        ),
    }


def _fit(make: Makers, n: Counts, *, target: Target | None) -> Part:
    every: dict[str, Any] = {"workers": n.most, "batch": 1, "updates": 3}
    late = f"reducer.num_required={n.most - n.most // 17}"
    cnn = make.ours(f"MNIST CNN, {n.most} x 1", "mnist_backup_106", late, share=0.15, **every)
    inception = make.ours(f"Inception-v3, {n.most} x 1", "imagenet_inception", late, share=0.75, **every)
    return Part((cnn, inception), tuple(peak(f"{c.name}, peak memory", c.name, target) for c in (cnn, inception)))


# ---- measuring ---------------------------------------------------------------------------------------------------


class Clock:
    """Ends a run at its limit: the processes that it watches are killed, and nothing more is started.

    Args:
      limit_seconds: of the run.
    """

    def __init__(self, limit_seconds: float):
        self._end = time.monotonic() + limit_seconds
        self._lock = threading.Lock()
        self._children: set[rounds.Child] = set()
        self._timer = threading.Timer(limit_seconds, self._kill)
        self._timer.daemon = True
        self.reason = f"the limit of {limit_seconds:g} s was reached"

    @property
    def left(self) -> float:
        """The seconds that are left; not above 0 when the run has to end."""
        return self._end - time.monotonic()

    @contextlib.contextmanager
    def watch(self, child: rounds.Child) -> Iterator[rounds.Child]:
        """Kills a process at the limit, if it has not ended before."""
        with self._lock:
            self._children.add(child)
        if self.left <= 0:
            child.kill()
        try:
            with child:
                yield child
        finally:
            with self._lock:
                self._children.discard(child)

    def _kill(self) -> None:
        with self._lock:
            for child in self._children:
                child.kill()

    def __enter__(self) -> "Clock":
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()


class Bench:
    """Compiles and times contenders, and keeps the results.

    Args:
      repeats: the number of counted rounds.
      clock: the limit of the run.
      folder: an empty folder for compiled programs and made-up data.
      log: called with lines of progress.
      profile: the folder for traces of contenders that miss their targets, or None.
    """

    def __init__(self, *, repeats: int, clock: Clock, folder: Path, log: command.Log, profile: Path | None):
        self._repeats, self._clock, self._log, self._profile = repeats, clock, log, profile
        self._folder = folder
        self._compile_seconds: dict[str, float] = {}  # by line
        self._reasons: dict[str, str] = {}  # by line: why a contender of ours was not compiled, or one was not started
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    # ---- processes ----

    @contextlib.contextmanager
    def _started(self, contender: Contender, *, memory: Literal["share", "as needed"]) -> Iterator[rounds.Child]:
        environment = dict(self._environment)
        if contender.packages:
            module, arguments = "benchmarks.torch_twins", contender.line.split()
        else:
            module, arguments = "benchmarks.groups", ["localhost:1", "1", "0", "1"]  # one process, one device
            share = contender.share if memory == "share" else 0.9
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(share)
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if memory == "share" else "false"
        with self._clock.watch(rounds.Child.module(module, *arguments, environment=environment)) as child:
            yield child

    def _ask(self, child: rounds.Child, contender: Contender, verb: str = "") -> float:
        """Asks a contender's process for a turn, or for what a verb names."""
        if verb == "peak" or contender.packages:  # PyTorch's processes have one contender each
            return child(verb or "go")
        return child(f"{verb} {contender.line}".strip())

    def _why(self, error: Exception) -> str:
        return self._clock.reason if self._clock.left <= 0 else str(error).rpartition("and said: ")[2]

    # ---- phases ----

    def compile(self, contenders: Sequence[Contender], *, beside: Sequence[Callable[[], Any]] = ()) -> None:
        """Compiles contenders side by side, each once, into the folder of programs.

        Args:
          contenders: those to compile.
          beside: other work to do meanwhile.
        """
        lines = {c.line: c for c in contenders if c.line not in self._compile_seconds and not missing(c)}

        def compile_one(contender: Contender) -> None:
            try:
                with self._started(contender, memory="as needed") as child:
                    seconds = self._ask(child, contender, "compile")
            except RuntimeError as error:
                self._log(f"not compiled: {contender.name}: {self._why(error)}")
                return
            self._compile_seconds[contender.line] = seconds
            self._log(f"compiled in {seconds:.0f} s: {contender.name}")

        if not lines and not beside:
            return
        self._log(f"compiling {len(lines)} programs side by side")
        with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as threads:
            done = [threads.submit(work) for work in beside]
            done += [threads.submit(compile_one, contender) for contender in lines.values()]
        for one in done:
            one.result()

    def compiled(self, part: Part) -> list[Measured]:
        """Returns the rows of a part whose contenders are only compiled."""
        self.compile(part.contenders)
        taken = {
            c.name: Taken(c, (), math.nan, self._compile_seconds[c.line])
            for c in part.contenders
            if c.line in self._compile_seconds
        }
        return self._rows(part, taken, reasons={c.name: "it was not compiled" for c in part.contenders})

    def turns(self, parts: Mapping[str, Part]) -> Iterator[list[Measured]]:
        """Starts the contenders of some parts side by side, and yields the rows of each part, timed alone.

        Args:
          parts: parts whose contenders fit into the memory together.
        """
        with contextlib.ExitStack() as stack:
            children: dict[tuple[str, str], rounds.Child] = {}
            reasons: dict[tuple[str, str], str] = {}
            keyed = {(name, c.name): c for name, part in parts.items() for c in part.contenders}
            for key, contender in keyed.items():
                if reason := missing(contender):
                    reasons[key] = reason
                else:
                    children[key] = stack.enter_context(self._started(contender, memory="share"))

            def begin(key: tuple[str, str]) -> None:
                try:
                    self._ask(children[key], keyed[key])
                except RuntimeError as error:
                    reasons[key] = self._why(error)
                    self._log(f"not started: {', '.join(key)}: {reasons[key]}")

            self._log(f"starting {len(children)} contenders of {', '.join(parts)}")
            with concurrent.futures.ThreadPoolExecutor(max(1, len(children))) as threads:
                list(threads.map(begin, children))
            for name, part in parts.items():
                ready = {c.name: children[name, c.name] for c in part.contenders if (name, c.name) not in reasons}
                of_part = {c.name: reasons[name, c.name] for c in part.contenders if (name, c.name) in reasons}
                yield self._turns_of(name, part, ready, reasons=of_part)

    def _turns_of(
        self, name: str, part: Part, children: Mapping[str, rounds.Child], *, reasons: dict[str, str]
    ) -> list[Measured]:
        chosen = {c.name: c for c in part.contenders if c.name in children}
        turns: dict[str, rounds.Turn] = {
            key: functools.partial(self._ask, children[key], contender) for key, contender in chosen.items()
        }
        taken: dict[str, Taken] = {}
        try:
            seconds = rounds.in_turns(turns, repeats=self._repeats, log=lambda line: self._log(f"{name}: {line}"))
            for key, contender in chosen.items():
                compile_seconds = self._compile_seconds.get(contender.line, math.nan)
                peak_bytes = self._ask(children[key], contender, "peak")
                taken[key] = Taken(contender, seconds[key], peak_bytes, compile_seconds)
        except RuntimeError as error:
            reasons |= {key: self._why(error) for key in chosen if key not in taken}
        rows = self._rows(part, taken, reasons=reasons)
        self._trace_missed(name, part, rows, children)
        return [*rows, *(row for one in taken.values() for row in details(name, one, examples=part.examples))]

    def _rows(self, part: Part, taken: Mapping[str, Taken], *, reasons: Mapping[str, str]) -> list[Measured]:
        found = []
        for row in part.rows:
            absent = [f"{key}: {reasons[key]}" for key in row.contenders if key not in taken]
            values = [] if absent else [float(x) for x in row.values(*(taken[key] for key in row.contenders))]
            if not absent and not np.isfinite(values).all():
                absent, values = ["the device does not tell"], []
            found.append(Measured(row.name, values, row.unit, row.target, missing="; ".join(absent)))
        return found

    def _trace_missed(
        self, name: str, part: Part, found: Sequence[Measured], children: Mapping[str, rounds.Child]
    ) -> None:
        """Traces the first contender of each row that misses its target, if it is one of ours."""
        first = {row.name: row.contenders[0] for row in part.rows}
        contenders = {c.name: c for c in part.contenders if not c.packages}
        if self._profile is None:
            return
        for key in dict.fromkeys(first[one.name] for one in found if one.verdict == "missed"):
            if key in contenders and key in children:
                folder = self._profile / re.sub(r"\W+", "-", f"{name} {key}")
                try:
                    self._ask(children[key], contenders[key], f"trace {folder}")
                    self._log(f"traced {key} into {folder}")
                except RuntimeError as error:
                    self._log(f"not traced: {key}: {self._why(error)}")

    def runs(self, size: Size) -> list[Measured]:
        """Returns the rows of whole runs of train.py, each with an empty folder of compiled programs."""
        if size == "full":
            lenet5, digits = "mnist_adasum", "digits"
        else:
            lenet5, digits = "mnist_adasum:smoke", "digits:smoke"
        once, default, small = f"{lenet5}, 1 step a call", lenet5, digits
        lines = {default: (lenet5, ()), once: (lenet5, ("--steps_per_dispatch=1",)), small: (digits, ())}
        seconds: dict[str, list[whole_runs.Seconds]] = {key: [] for key in lines}
        reason = ""
        try:
            for number in range(self._repeats):
                self._log(f"whole runs: round {number + 1} of {self._repeats}")
                for key in list(lines)[:: -1 if number % 2 else 1]:
                    config, arguments = lines[key]
                    taken = whole_runs.run(
                        config, arguments, environment=self._run_environment, timeout=max(0.0, self._clock.left)
                    )
                    seconds[key].append(taken)
        except RuntimeError as error:
            reason = self._why(error)
            self._log(f"whole runs: {reason}")
        count = min(map(len, seconds.values()))  # of whole rounds

        def row(name: str, value: Callable[[int], float], target: Target | None = None, unit: str = "s") -> Measured:
            return Measured(name, [value(i) for i in range(count)], unit, target, missing="" if count else reason)

        over = f"configs/{lenet5}, default steps a call over 1, seconds in the loop"
        return [
            row(f"configs/{lenet5}, seconds in the loop", lambda i: seconds[default][i].loop, Target("<=", 6)),
            row(f"configs/{lenet5}, start to end", lambda i: seconds[default][i].process),
            row(over, lambda i: seconds[default][i].loop / seconds[once][i].loop, Target("<=", 1), "x"),
            row(f"configs/{digits}, start to end", lambda i: seconds[small][i].process, Target("<=", 12)),
            row(f"configs/{digits}, seconds in the loop", lambda i: seconds[small][i].loop),
        ]

    @functools.cached_property
    def _run_environment(self) -> dict[str, str]:
        """The environment of whole runs, whose MNIST is made up where none is prepared."""
        without = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
        environment = {key: value for key, value in self._environment.items() if key not in without}
        return {**environment, **whole_runs.with_mnist(self._folder)}

    def prepare_runs(self) -> None:
        """Makes the data of whole runs ahead."""
        self._run_environment  # noqa: B018


def missing(contender: Contender) -> str:
    """Returns which package a contender lacks, in words; "" if it has all."""
    absent = [name for name in contender.packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def details(part: str, taken: Taken, *, examples: str) -> list[Measured]:
    """Returns milliseconds, examples per second, peak memory and compile seconds of a contender, as far as known."""
    name, rows = f"{part}: {taken.contender.name}", []
    rows.append(Measured(f"{name}, step", [1e3 * seconds for seconds in taken.seconds], "ms"))
    rows.append(Measured(f"{name}, speed", taken.rates, f"{examples}/s"))
    if math.isfinite(taken.peak_bytes):
        rows.append(Measured(f"{name}, peak memory", [taken.peak_bytes / GIB], "GiB"))
    if math.isfinite(taken.compile_seconds):
        rows.append(Measured(f"{name}, compiled side by side with others", [taken.compile_seconds], "s"))
    return rows


def together(parts: Mapping[str, Part]) -> Iterator[dict[str, Part]]:
    """Yields consecutive parts whose contenders fit into the memory at the same time.

    >>> def part(share):
    ...     return Part((Contender("a", "step a", 1, share),))
    >>> [list(batch) for batch in together({"x": part(0.5), "y": part(0.4), "z": part(0.3)})]
    [['x', 'y'], ['z']]
    """
    batch: dict[str, Part] = {}
    used = 0.0
    for name, part in parts.items():
        share = sum(contender.share for contender in part.contenders)
        if batch and used + share > _ALL_SHARES:
            yield batch
            batch, used = {}, 0.0
        batch[name] = part
        used += share
    if batch:
        yield batch


def benchmark(
    *,
    parts: Mapping[str, Part],
    size: Size,
    repeats: int,
    limit_seconds: float,
    log: command.Log,
    profile: Path | None = None,
) -> Generator[list[Measured], None, None]:
    """Yields the rows of part after part.

    Args:
      parts: what to measure, by name.
      size: of the contenders.
      repeats: the number of counted rounds.
      limit_seconds: of all; what is not measured by then is reported as such.
      log: called with lines of progress.
      profile: the folder for traces of contenders that miss their targets, or None.
    """

    def by(measure: str) -> dict[str, Part]:
        return {name: part for name, part in parts.items() if part.measure == measure}

    with Clock(limit_seconds) as clock, tempfile.TemporaryDirectory() as folder:
        bench = Bench(repeats=repeats, clock=clock, folder=Path(folder), log=log, profile=profile)
        for part in by("compiling").values():
            yield bench.compiled(part)
        timed = by("turns")
        ahead = [bench.prepare_runs] if by("runs") and size == "full" else []
        bench.compile([c for part in timed.values() for c in part.contenders], beside=ahead)
        for batch in together(timed):
            if clock.left > 0:
                yield from bench.turns(batch)
            else:
                rows = [row for part in batch.values() for row in part.rows]
                yield [Measured(row.name, [], row.unit, row.target, missing=clock.reason) for row in rows]
        if by("runs"):
            yield bench.runs(size)


# ---- the command -------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line.

    Raises:
      ValueError: one line, if a value is not allowed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(make_parts("full", platform="gpu"))
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(names)} (default: all)")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: small models of the same kinds")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="counted rounds (default: %(default)s)")
    parser.add_argument(
        "--limit_seconds", type=float, default=LIMIT_SECONDS, help="of the whole run (default: %(default)g)"
    )
    parser.add_argument("--profile", help="folder for a trace of each contender of ours that misses its target")
    parser.add_argument("--json", default=str(JSON), help="file for all values (default: %(default)s)")
    given = parser.parse_args(argv)
    given.only = names if given.only is None else given.only.split(",")
    if unknown := [name for name in given.only if name not in names]:
        raise ValueError(f"only={unknown[0]!r}: must be of {', '.join(names)}")
    if given.repeats < 1:
        raise ValueError(f"repeats={given.repeats}: must be 1 or more")
    if not given.limit_seconds > 0:
        raise ValueError(f"limit_seconds={given.limit_seconds:g}: must be above 0")
    if given.profile is not None and (not given.profile or re.search(r"\s", given.profile)):
        raise ValueError(f"profile={given.profile!r}: must be a path without spaces")
    if given.json == str(JSON):
        JSON.parent.mkdir(parents=True, exist_ok=True)
    given.json = command.writable("json", given.json)
    return given


def merged(found: Sequence[Measured], path: Path, *, environment: Mapping[str, Any]) -> list[Measured]:
    """Returns new rows and, if they are of the same commit and devices, the other rows of a file."""
    rows: dict[str, Measured] = {}
    if path.exists():
        before, old = measured.read(path)
        same = all(before[key] == environment[key] for key in ("commit", "tree", "devices"))
        rows = {one.name: one for one in old} if same else {}
    return list({**rows, **{one.name: one for one in found}}.values())


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input or without a GPU, 130 after Ctrl-C."""
    try:
        given = parse(argv)
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # this process only asks for the device's name
        device = jax.devices()[0]
        if given.size == "full" and device.platform != "gpu":
            raise ValueError(f"size='full': needs a GPU, JAX finds {device.platform}; --size=tiny runs on any device")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    memory = float((device.memory_stats() or {}).get("bytes_limit", math.nan))
    parts = make_parts(given.size, platform=device.platform, memory=memory)
    versions = {name: importlib.metadata.version(name) for name in _PEERS if importlib.util.find_spec(name)}
    profile = None if given.profile is None else Path(given.profile).expanduser().resolve()
    found: list[Measured] = []
    results = benchmark(
        parts={name: parts[name] for name in parts if name in given.only},
        size=given.size,
        repeats=given.repeats,
        limit_seconds=given.limit_seconds,
        log=log,
        profile=profile,
    )
    with contextlib.closing(results):
        try:
            for rows in results:
                found += rows
                for one in rows:
                    print(measured.in_words(one), flush=True)
                write(found, given.json, devices=loops.devices(), packages=versions)
        except KeyboardInterrupt:
            return 130
    log(f"written to {given.json}")
    return 0


def write(found: Sequence[Measured], path: Path, *, devices: Sequence[str], packages: Mapping[str, str]) -> None:
    """Writes rows, beside those of other parts that an earlier run on the same commit and devices has written."""
    environment = measured.environment_of(devices=devices, packages=packages)
    measured.write("gpu", merged(found, path, environment=environment), environment=environment, path=path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
