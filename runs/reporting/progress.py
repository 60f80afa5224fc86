"""The progress of a run: a bar on a terminal, plain lines elsewhere, on stderr."""

import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from launch.output import printable

EVERY_SECONDS = 5.0  # least time between two plain lines
EVALUATION_SECONDS = 2.0  # least time between two lines of evaluations
COMPILING_SECONDS = 20.0  # without a line before one says why
_SHOWN = ("loss", "accuracy", "masked_lm_accuracy", "bits_per_dim", "perplexity")


def counted(count: int, noun: str) -> str:
    """Returns a number of things.

    >>> counted(1, "device"), counted(8, "device")
    ('1 device', '8 devices')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def in_words(record: Mapping[str, Any], *, names: Sequence[str] = _SHOWN) -> str:
    """Returns one line of the named quantities that a record has.

    >>> in_words({"accuracy": 0.5, "loss": 1.0})
    'loss 1.0000, accuracy 50.00%'
    """
    return ", ".join(map(" ".join, quantities(record, names=names)))


def quantities(record: Mapping[str, Any], *, names: Sequence[str] = _SHOWN) -> list[tuple[str, str]]:
    """Returns name and value, formatted, of the named quantities that a record has.

    >>> quantities({"bits_per_dim": 3.0, "accuracy": 0.5})
    [('accuracy', '50.00%'), ('bits per dim', '3.0000')]
    """
    return [
        (name.replace("_", " "), f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4f}")
        for name in names
        if (value := record.get(name)) is not None
    ]


class Progress:
    """Shows step, loss, quality and rate of a run."""

    def __init__(
        self,
        num_steps: int,
        *,
        start_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Opens the bar if the stream is a terminal.

        Args:
          num_steps: the last step of the run.
          start_step: the step from which the run goes on.
          stream: the output; None is stderr.
          clock: returns seconds that only grow; tests replace it.
        """
        self._num_steps = num_steps
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shown_seconds = -math.inf  # the time of the last plain line
        self._evaluated_seconds = -math.inf  # the time of the last line of an evaluation
        self._is_first = True
        self._waiting: str | None = None  # a plain line that is shown only if no other follows
        self._bar = None
        if self._stream.isatty():
            import tqdm

            self._bar = tqdm.tqdm(
                total=num_steps, initial=start_step, file=self._stream, dynamic_ncols=True, unit="step", leave=True
            )
        explain = weakref.WeakMethod(self._explain_wait)  # nobody waits for what is gone without being closed
        self._compiling = threading.Timer(COMPILING_SECONDS, lambda: (found := explain()) and found())
        self._compiling.daemon = True
        self._compiling.start()

    def update(self, step: int, record: Mapping[str, Any]) -> None:
        """Shows a finished step, with loss, quality and examples_per_second of its record.

        The time until the first one, in which programs compile, does not enter the rate and the time left.
        """
        if self._is_first:
            self._is_first = False
            self._compiling.cancel()
            record = {name: value for name, value in record.items() if name != "examples_per_second"}
            if self._bar is not None:
                self._bar.initial = self._bar.last_print_n = self._bar.n = step  # the rate is that of later steps
                self._bar.unpause()
        if self._bar is not None:
            self._bar.set_postfix_str(_describe(record), refresh=False)
            self._bar.update(step - self._bar.n)
            return
        now = self._clock()
        self._waiting = f"step {step}/{self._num_steps}  {_describe(record)}".rstrip()
        if now - self._shown_seconds >= EVERY_SECONDS or step == self._num_steps:
            self._shown_seconds = now
            self._show_waiting()

    def evaluation(self, step: int, record: Mapping[str, Any], *, split: str) -> None:
        """Shows an evaluation as a line of its own, unless one was shown just before; the last one is always shown.

        Args:
          step: the evaluated step.
          record: its quality.
          split: "test" or "validation".
        """
        now = self._clock()
        if now - self._evaluated_seconds >= EVALUATION_SECONDS or step == self._num_steps:
            self._evaluated_seconds = self._shown_seconds = now
            self._waiting = None  # the evaluation's line replaces it
            self.message(f"step {step}/{self._num_steps}  {split} {_describe(record)}")

    def message(self, text: str) -> None:
        """Writes a line of its own, without damage to the bar; names in it cannot control the terminal."""
        line = "\n".join(map(printable, text.split("\n")))
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Shows the last step; a second call does nothing."""
        self._compiling.cancel()
        if self._bar is not None:
            self._bar.close()
        else:
            self._show_waiting()

    def _explain_wait(self) -> None:
        self.message("waiting for the first step, before which programs are compiled")

    def _show_waiting(self) -> None:
        line, self._waiting = self._waiting, None
        if line is not None:
            print(line, file=self._stream, flush=True)


def _describe(record: Mapping[str, Any]) -> str:
    parts = [*map(" ".join, quantities(record))]
    rate = record.get("examples_per_second")
    if rate is not None:
        parts.append(f"{rate:,.0f} ex/s")
    return "  ".join(parts)
