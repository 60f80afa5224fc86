"""A profiler trace of a few steps, for Perfetto and TensorBoard."""

import contextlib
from pathlib import Path
from typing import Any

import jax

NUM_SKIPPED, NUM_TRACED = 10, 10  # steps, or the next multiple of the steps per call


class Profile:
    """Traces ten steps from the eleventh on: by then everything is compiled and the pipeline is full.

    In a run that ends before its eleventh step it traces the last call.

    Args:
      folder: folder of the trace; None traces nothing.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._is_on = False
        self._num_steps = 0  # since the start, or since the trace began

    def step(self, step: int, *, num_steps: int, is_last: bool, state: Any) -> contextlib.AbstractContextManager:
        """Returns a context for one call of the devices, and starts or ends the trace before it.

        Args:
          step: the first step of the call, for the annotation in the trace.
          num_steps: how many steps the call takes.
          is_last: whether the run ends with it.
          state: the result of earlier calls; waited for, so that the trace has whole steps.
        """
        if self._folder is None:
            return contextlib.nullcontext()
        if not self._is_on and (is_last or self._num_steps >= NUM_SKIPPED):
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._is_on, self._num_steps = True, 0
        elif self._is_on and self._num_steps >= NUM_TRACED:
            self.close(state)
            self._folder = None
        self._num_steps += num_steps
        return jax.profiler.StepTraceAnnotation("train", step_num=step) if self._is_on else contextlib.nullcontext()

    def close(self, state: Any = ()) -> None:
        """Ends the trace, if it has begun, when the state is computed."""
        if self._is_on:
            self._is_on = False
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
