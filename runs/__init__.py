"""Runs: their folders, records, checkpoints, progress, stop signals and exit codes."""

from runs.checkpoints import Checkpoints, flatten
from runs.clock import Clock
from runs.compiled import keep_compiled
from runs.counters import RunCounters
from runs.exit_codes import exit_code, exit_code_after
from runs.files import SaveError, decode_numbers, encode_numbers, from_json, write_atomically
from runs.folder import Folder, is_held, open_run
from runs.identity import check_same, expand, fingerprint
from runs.profile import Profile
from runs.progress import Progress, in_words
from runs.records import HOST_CLOCK_FIELDS, Records, read
from runs.signals import catch_stop
from runs.sinks import GuardedSink, Sink
from runs.summary import default_workdir, summarise
from runs.traces import TraceRecorder, slowest_process

__all__ = [
    "HOST_CLOCK_FIELDS",
    "Checkpoints",
    "Clock",
    "Folder",
    "GuardedSink",
    "Profile",
    "Progress",
    "Records",
    "RunCounters",
    "SaveError",
    "Sink",
    "TraceRecorder",
    "catch_stop",
    "check_same",
    "decode_numbers",
    "default_workdir",
    "encode_numbers",
    "exit_code",
    "exit_code_after",
    "expand",
    "fingerprint",
    "flatten",
    "from_json",
    "in_words",
    "is_held",
    "keep_compiled",
    "open_run",
    "read",
    "slowest_process",
    "summarise",
    "write_atomically",
]
