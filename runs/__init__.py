"""Runs: their folders, records, checkpoints, progress, stop signals and exit codes."""

from runs.checkpoints import Checkpoints, flatten
from runs.compiled import keep_compiled
from runs.environment import NO_INPUTS, Code, Inputs, changed_code, changed_files, read_starts
from runs.exit_codes import exit_code
from runs.files import GoneError, SaveError, decode_numbers, encode_numbers, from_json, write_atomically
from runs.folder import CodeChange, Folder, check_code, holder, open_run
from runs.identity import check_same, expand, fingerprint
from runs.reporting.clock import Clock
from runs.reporting.counters import RunCounters
from runs.reporting.profile import Profile
from runs.reporting.progress import Progress, in_words
from runs.reporting.records import HOST_SECONDS, Records, is_of_host_clock, read, stream
from runs.reporting.sinks import Ending, GuardedSink, Sink
from runs.reporting.summary import default_workdir, summarise
from runs.signals import Stop
from runs.traces import TraceRecorder, cut_traces, read_times, slowest_process, trace_path
