"""What a run leaves on disk and shows on the way: folder, lock, records, checkpoints, progress, stop signals."""

from runs.checkpoints import Checkpoints, flatten
from runs.clock import Clock
from runs.compiled import keep_compiled
from runs.files import SaveError, decode_numbers, encode_numbers, from_json, write_atomically
from runs.folder import Folder, check_workdir, is_held, open_run
from runs.identity import check_same, expand, fingerprint
from runs.profile import Profile
from runs.progress import Progress, in_words
from runs.records import HOST_CLOCK_FIELDS, Records, read
from runs.signals import Stop, catch_stop
from runs.summary import default_workdir, summarise
from runs.tally import Tally
from runs.traces import TraceRecorder, slowest_process

__all__ = [
    "HOST_CLOCK_FIELDS",
    "Checkpoints",
    "Clock",
    "Folder",
    "Profile",
    "Progress",
    "Records",
    "SaveError",
    "Stop",
    "Tally",
    "TraceRecorder",
    "catch_stop",
    "check_same",
    "check_workdir",
    "decode_numbers",
    "default_workdir",
    "encode_numbers",
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
