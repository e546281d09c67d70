"""Pages of libraries that a start alone needed: what ran once in torch's, and nearly all of LLVM.

The system keeps code that is mapped longer than any other page of a file. When it is not, it can be
given up for something else, and does not count as the process's. Nothing is read from the disk
anew: what is wanted again is mapped from the system's cache of files, 64 KiB at a time.
"""

import ctypes
import mmap
import re
from pathlib import Path

import numpy as np

_MADV_DONTNEED = 4
_SMALLEST_BYTES = 1 << 20  # the many small mappings hold a few MiB together
# Of a private mapping of a file, not writable: "7f00-7f10 r-xp 00001000 08:01 1234   /lib/x.so"
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[x-]p \S+ \S+ \S+ +/")
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))  # in pagemap


def unmap_read_only() -> int:
    """Unmap the pages of files that are mapped for reading alone, privately and by a MiB or more.
    Left as it is is a mapping of which this process has pages of its own, relocated ones or a
    debugger's. Returns the bytes that were mapped; 0 on a system that cannot say.
    """
    num_bytes = 0
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            madvise = ctypes.CDLL(None).madvise
            madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
            for found in filter(None, map(_MAPPING.match, maps.splitlines())):
                start, stop = int(found[1], 16), int(found[2], 16)
                if stop - start < _SMALLEST_BYTES:
                    continue
                pagemap.seek(8 * (start // mmap.PAGESIZE))
                pages = np.frombuffer(
                    pagemap.read(8 * ((stop - start) // mmap.PAGESIZE)), dtype=np.uint64
                )
                is_present = (pages & _PRESENT) != 0
                is_own = (pages & _SWAPPED != 0) | (is_present & (pages & _OF_FILE == 0))
                if not is_own.any() and madvise(start, stop - start, _MADV_DONTNEED) == 0:
                    num_bytes += mmap.PAGESIZE * int(is_present.sum())
    except (OSError, AttributeError):
        return num_bytes
    return num_bytes
