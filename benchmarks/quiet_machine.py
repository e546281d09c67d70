"""How much of this machine other programs use: timings beside them say nothing."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle, iowait; the rest of the first eight is time in use, or stolen


@dataclass(frozen=True, slots=True)
class LoadMark:
    """CPU seconds until now: of all cores, and of this process with its threads."""

    wall_s: float
    all_s: float
    own_s: float


def mark() -> LoadMark:
    """The state now; two of them tell the load between."""
    own = os.times()
    return LoadMark(time.perf_counter(), _busy_s(), own.user + own.system)


def other_cores(since: LoadMark) -> float:
    """Cores that other programs (and, in a virtual machine, its host) kept busy since the mark.

    Where the system does not tell, all but one of the load average's last minute.
    """
    now = mark()
    if not _STAT.exists():
        return max(0.0, os.getloadavg()[0] - 1)
    busy_s = (now.all_s - since.all_s) - (now.own_s - since.own_s)
    return max(0.0, busy_s / (now.wall_s - since.wall_s))


def other_cores_now(seconds: float = 1.0) -> float:
    """`other_cores` over the next moment, in which this process sleeps."""
    start = mark()
    time.sleep(seconds)
    return other_cores(start)


def _busy_s() -> float:
    if not _STAT.exists():
        return 0.0
    fields = [int(text) for text in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    busy = sum(fields) - sum(fields[idx] for idx in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")
