"""The exit codes of a command, and the line with which an error ends it.

0 is success. 1 means that a run ended early; the same command resumes it from its last checkpoint. 2 means that input
was refused before the first step; nothing was written except perhaps the run's description in its folder. 3 means that
the devices' copies of the parameters became different in the middle of a run. 128 + n means that signal n stopped the
run, whose state is saved.
"""

import sys
import traceback
from collections.abc import Callable, Mapping

import jax

from parallel import processes
from runs.errors import ConfigError


def exit_code(command: Callable[[], int], *, failures: Mapping[type[Exception], str]) -> int:
    """Calls a command and returns its exit code; in multi-process runs a failing process ends here.

    Other exceptions are raised in a run of one process, and printed in a run of several.

    Args:
      command: returns 0, or 128 + n after signal n.
      failures: errors that end a run early -> the line to print, in which ``{}`` is the error's message. An error's own
        ``exit_code``, if it has one, replaces 1.

    Returns:
      The command's code; 2 after a ConfigError; 1, or its own code, after one of the failures; 1 if there is not enough
      memory.
    """
    code = 1
    try:
        return command()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except tuple(failures) as error:
        line = next(line for kind, line in failures.items() if isinstance(error, kind)).format(error)
        print(line, file=sys.stderr)
        code = getattr(error, "exit_code", 1)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        reason = str(error).split("\n")[0]
        if isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):
            line = f"not enough memory: {reason}; {_LESS_MEMORY}"
        elif processes.several():
            where = f"process {processes.index()} of {processes.count()}"
            line = f"{where} lost the others ({reason}); the same command goes on from the last checkpoint"
        else:
            raise
        print(line, file=sys.stderr)
    except Exception:
        if not processes.several():
            raise
        traceback.print_exc()
    if processes.several():
        processes.abandon(code)
    return code


_LESS_MEMORY = (
    "smaller batches (config.batch_size_per_worker), fewer workers (config.num_workers) or more devices need less, and "
    "--dry_run says how much; the same command goes on from the last checkpoint"
)
