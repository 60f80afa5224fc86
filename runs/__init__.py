"""Runs: their folders, records, checkpoints, progress, stop signals and exit codes."""

from runs import agreement
from runs.checkpoints import Checkpoints, flatten
from runs.compiled import keep_compiled
from runs.environment import NO_INPUTS, Code, Inputs, changed_code, changed_files, read_starts
from runs.exit_codes import exit_code, exit_code_after
from runs.files import GoneError, SaveError, decode_numbers, encode_numbers, from_json, write_atomically
from runs.folder import CodeChange, Folder, check_code, holder, open_run
from runs.identity import check_same, expand, fingerprint
from runs.reporting.clock import Clock
from runs.reporting.counters import RunCounters
from runs.reporting.profile import Profile
from runs.reporting.progress import Progress, in_words
from runs.reporting.records import HOST_CLOCK_FIELDS, Records, last, read, stream
from runs.reporting.sinks import Ending, GuardedSink, Sink
from runs.reporting.summary import default_workdir, summarise
from runs.signals import Stop
from runs.traces import TraceRecorder, cut_traces, read_times, slowest_process, trace_path

__all__ = [
    "HOST_CLOCK_FIELDS",
    "NO_INPUTS",
    "Checkpoints",
    "Clock",
    "Code",
    "CodeChange",
    "Ending",
    "Folder",
    "GoneError",
    "GuardedSink",
    "Inputs",
    "Profile",
    "Progress",
    "Records",
    "RunCounters",
    "SaveError",
    "Sink",
    "Stop",
    "TraceRecorder",
    "agreement",
    "changed_code",
    "changed_files",
    "check_code",
    "check_same",
    "cut_traces",
    "decode_numbers",
    "default_workdir",
    "encode_numbers",
    "exit_code",
    "exit_code_after",
    "expand",
    "fingerprint",
    "flatten",
    "from_json",
    "holder",
    "in_words",
    "keep_compiled",
    "last",
    "open_run",
    "read",
    "read_starts",
    "read_times",
    "slowest_process",
    "stream",
    "summarise",
    "trace_path",
    "write_atomically",
]
