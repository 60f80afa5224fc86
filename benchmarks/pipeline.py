"""Images per second of the streamed pipeline, from records on disk to crops, with one thread and with processes.

    python -m benchmarks.pipeline
    python -m benchmarks.pipeline --processes=1,2,4,8 --repeats=9 --json=out/pipeline.json

Writes JPEG images like those of ImageNet, smooth noise at quality 90 to 95, into a temporary folder, and gathers
batches of them with one thread and with processes in turns. "reading", "decoding" and "rest" are fractions of the time
of one thread: reading the records, decoding the JPEG at full size, and what remains, which may be below 0 where crops
are decoded at a reduced size. Ctrl-C ends with the results so far.
"""

import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np
from absl import flags

from benchmarks.kit import command
from data.decoding.pool import Job
from data.examples import Mode
from data.streams import Images
from runs import environment, files

MODES: tuple[Mode, ...] = ("training", "evaluation")
NUM_CLASSES = 1000
HEADER = ("crops", "processes", "images/s", "quartiles", "per process", "reading", "decoding", "rest")


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command."""
    values = flags.FlagValues()
    flags.DEFINE_integer("images", 256, "Number of different images.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("width", 500, "Width of a stored image in pixels.", lower_bound=8, flag_values=values)
    flags.DEFINE_integer("height", 375, "Height of a stored image in pixels.", lower_bound=8, flag_values=values)
    flags.DEFINE_integer("image_size", 224, "Side of a crop in pixels.", lower_bound=1, flag_values=values)
    flags.DEFINE_list("processes", ["1", "2"], "Numbers of processes to measure, after one thread.", flag_values=values)
    flags.DEFINE_integer("repeats", 7, "Number of counted rounds.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("json", None, "File for all times and their environment.", flag_values=values)
    return values


@dataclasses.dataclass
class Row:
    """The measurements of one kind of crops with one number of processes.

    Attributes:
      mode: "training" for random-resized crops, "evaluation" for centre crops.
      processes: the number of decoding processes; 0 is one thread of this process.
      seconds: the seconds of each round over all images.
      reading: the seconds that one thread takes in each round to read all records; empty for processes.
      decoding: the seconds that one thread takes in each round to decode all images at full size; empty for processes.
    """

    mode: Mode
    processes: int
    seconds: list[float] = dataclasses.field(default_factory=list)
    reading: list[float] = dataclasses.field(default_factory=list)
    decoding: list[float] = dataclasses.field(default_factory=list)


def smooth_noise(number: int, *, width: int, height: int) -> np.ndarray:
    """Returns an image whose detail fades as in photographs, [height, width, 3] uint8, different for each number."""
    from PIL import Image

    rng = np.random.default_rng(number)
    picture = np.full((height, width, 3), 128, np.float32)
    for cells, amplitude in ((8, 40), (32, 25), (128, 14)):
        coarse = rng.standard_normal((max(1, cells * height // width), cells, 3), np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            picture[..., channel] += amplitude * np.asarray(layer)
    picture += 5 * rng.standard_normal(picture.shape, np.float32)
    return picture.clip(0, 255).astype(np.uint8)


def write_images(path: pathlib.Path, *, count: int, width: int, height: int) -> int:
    """Writes an array_record file of JPEG images with labels, and returns their mean size in bytes."""
    from PIL import Image

    from benchmarks.kit import prepared_sets
    from data.decoding import records

    sizes = []

    def contents() -> Iterator[bytes]:
        for number in range(count):
            picture = Image.fromarray(smooth_noise(number, width=width, height=height))
            content = prepared_sets.file_of(picture, quality=90 + number % 6)
            sizes.append(len(content))
            yield records.pack(content, number % NUM_CLASSES)

    prepared_sets.write_shard(path, contents())
    return sum(sizes) // count


def parts(path: pathlib.Path, *, count: int) -> tuple[float, float]:
    """Returns the seconds that one thread takes to read all records, and to decode all images at full size."""
    from data.decoding import crops, records

    shards, reading, decoding = records.Shards([(str(path), count)]), 0.0, 0.0
    for record in range(count):
        start = time.perf_counter()
        content, _ = records.unpack(shards.read(record))
        read = time.perf_counter()
        crops.open_image(content).load()
        reading += read - start
        decoding += time.perf_counter() - read
    return reading, decoding


def measure(
    path: pathlib.Path,
    *,
    count: int,
    image_size: int,
    processes: Sequence[int],
    repeats: int,
    rows: list[Row],
    log: command.Log,
) -> None:
    """Gathers all images once a round with each number of processes; the first round starts them and is not counted.

    Args:
      path: the path of the array_record file.
      count: the number of its records.
      image_size: the side of a crop in pixels.
      processes: the numbers of processes; 0 is one thread.
      repeats: the number of counted rounds.
      rows: a list to which a row is added for each kind of crops and number of processes before the first round. The
        rows are filled round by round.
      log: called with lines of progress.
    """
    own = [Row(mode, number) for mode in MODES for number in processes]
    rows += own
    index, opened = np.arange(count)[None], []
    try:
        for row in own:
            job = Job(
                files=[(str(path), count)],
                image_size=image_size,
                num_classes=NUM_CLASSES,
                mode=row.mode,
                seed=0,
                on_damage="stop",
                records=(0, count),
            )
            opened.append(Images(job, name="noise", split="train", processes=row.processes))
        for number in range(repeats + 1):
            log(f"round {number} of {repeats}")
            for row, examples in zip(own, opened, strict=True):
                start = time.perf_counter()
                examples.gather(index, np.array([number]))
                seconds = time.perf_counter() - start
                shares = [parts(path, count=count)] if number and not row.processes else []
                row.reading += [reading for reading, _ in shares]
                row.decoding += [decoding for _, decoding in shares]
                row.seconds += [seconds] if number else []
    finally:
        for examples in opened:
            examples.close()


def table(rows: Sequence[Row], *, count: int) -> str:
    """Returns the rows as aligned text; rates and shares are medians over the rounds.

    >>> print(table([Row("training", 0, [2.0], [0.1], [1.5]), Row("training", 2, [1.25], [], [])], count=100))
       crops   processes  images/s  quartiles  per process  reading  decoding  rest
    training  one thread        50      50-50           50      5 %      75 %  20 %
    training           2        80      80-80           40
    """
    lines: list[Sequence[str]] = [HEADER]
    for row in rows:
        threads = str(row.processes or "one thread")
        if not row.seconds:
            lines.append((row.mode, threads, "not measured", *[""] * 5))
            continue
        low, median, high = (f"{rate:.0f}" for rate in np.quantile(count / np.array(row.seconds), [0.25, 0.5, 0.75]))
        share = ["", "", ""]
        if not row.processes:
            parts_of = zip(row.reading, row.decoding, row.seconds, strict=False)  # Ctrl-C may cut one short
            reading, decoding = np.median([(r / seconds, d / seconds) for r, d, seconds in parts_of], axis=0)
            share = [f"{100 * part:.0f} %" for part in (reading, decoding, 1 - reading - decoding)]
        each = f"{float(median) / max(1, row.processes):.0f}"
        lines.append((row.mode, threads, median, f"{low}-{high}", each, *share))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C."""
    given = make_flags()
    if {"--help", "-help", "-h"} & set(argv):
        print(f"{__doc__}\n{given.get_help()}")
        return 0
    try:
        command.parse(argv, values=given)
        counts = [0, *(_count(text) for text in given.processes)]
        target = command.writable("json", given.json)
    except ValueError as error:
        print(f"benchmarks.pipeline: {error}", file=sys.stderr)
        return 2
    log = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    rows: list[Row] = []
    size, code = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "noise.array_record"
        try:
            log(f"writing {given.images} images")
            size = write_images(path, count=given.images, width=given.width, height=given.height)
            options = {"count": given.images, "image_size": given.image_size, "repeats": given.repeats}
            measure(path, **options, processes=counts, rows=rows, log=log)
        except KeyboardInterrupt:
            code = 130
            log("interrupted: these are the results so far")
    print(
        f"{given.images} images of {given.width} x {given.height}, {size / 1000:.0f} kB each, to {given.image_size} x "
        f"{given.image_size}; rounds: {max((len(row.seconds) for row in rows), default=0)}; {os.cpu_count()} cores\n"
    )
    print(table(rows, count=given.images))
    if target is not None:
        about = {name: given[name].value for name in ("images", "width", "height", "image_size", "repeats")}
        found = {"environment": environment.describe(devices=["host"]), "cpu_count": os.cpu_count(), **about}
        found |= {"mean_bytes": size, "rows": [dataclasses.asdict(row) for row in rows]}
        files.write_atomically(target, files.to_json(found))
    return code


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError(f"processes={text!r}: must be counts in [1, 1024]")
    return int(text)


if __name__ == "__main__":
    launch.command.run(main, sys.argv)
