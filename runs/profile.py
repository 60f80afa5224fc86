"""A trace of a few steps, for Perfetto and TensorBoard."""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

FIRST, COUNT = 10, 10  # turns that are passed over, and that are traced, at least


class Profile:
    """Traces ten turns of the step, from the eleventh on: all is compiled then, and the pipeline is full.

    Args:
      folder: for the trace; None for none.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._is_on = False
        self._num_turns = 0  # so far; while tracing, since the trace began

    def step(self, step: int, *, num_turns: int, state: Any) -> contextlib.AbstractContextManager:
        """Returns a context for one dispatch; starts and ends the trace when it is time.

        Args:
          step: the first of the dispatch, as traces name it.
          num_turns: that the dispatch does.
          state: what earlier ones have returned; a trace has nothing of them, and all of its own.
        """
        if self._folder is None:
            return contextlib.nullcontext()
        if not self._is_on and self._num_turns >= FIRST:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._is_on, self._num_turns = True, 0
        elif self._is_on and self._num_turns >= COUNT:
            self._end(state)
            self._folder = None
        self._num_turns += num_turns
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
