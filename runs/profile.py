"""A trace of a few steps, for Perfetto and TensorBoard."""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

FIRST, COUNT = 10, 10  # calls of the step that are passed over, and that are traced


class Profile:
    """Traces ten calls of the step, from the eleventh on: all is compiled then, and the pipeline is full.

    Args:
      folder: for the trace; None for none.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._is_on = False

    def step(self, call: int, *, step: int, state: Any) -> contextlib.AbstractContextManager:
        """Returns a context for one call of the step; starts and ends the trace when it is time.

        Args:
          call: of this process, from 0.
          step: of training, as traces name it.
          state: what earlier calls have returned; a trace has nothing of them, and all of its own.
        """
        if self._folder is None:
            return contextlib.nullcontext()
        if call == FIRST:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._is_on = True
        elif call == FIRST + COUNT:
            self._end(state)
        return jax.profiler.StepTraceAnnotation("train", step_num=step) if self._is_on else contextlib.nullcontext()

    def __enter__(self) -> "Profile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(())

    def _end(self, state: Any) -> None:
        if self._is_on:
            self._is_on = False
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
