"""Memory of the host: what one step frees is kept for the next."""

import ctypes
import os

# Of glibc's mallopt: name -> (its number in malloc.h, ours). Numbers are ints of C.
OPTIONS = {"MMAP_THRESHOLD": (-3, 2**30), "TRIM_THRESHOLD": (-1, 2**31 - 1), "TOP_PAD": (-2, 2**26)}


def keep_freed() -> bool:
    """Has glibc's allocator keep what is freed, up to 1 GiB a piece; returns whether it does.

    By default it gives every large buffer back to the system and asks for it anew in the next step, which then faults
    in page after page. Without, 8 workers' step of LeNet-5 with Adasum on 8 devices of 2 cores has a tenth of the
    faults and takes two thirds of the time. In return a process stays as large as it once was.

    Changes nothing where the allocator is another, or the environment tunes it (``MALLOC_*``, ``GLIBC_TUNABLES``).
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return all([mallopt(number, value) == 1 for number, value in OPTIONS.values()])


def environment() -> dict[str, str]:
    """Returns what does the same for a process that is started with it.

    >>> environment()["MALLOC_TOP_PAD_"]
    '67108864'
    """
    return {f"MALLOC_{name}_": str(value) for name, (_, value) in OPTIONS.items()}
