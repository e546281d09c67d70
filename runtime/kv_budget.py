"""How much memory the KV pool of a CPU takes where the configuration does not say. Called at start.

The pool fills up with what may be wanted again, so its size is what the process takes in the end.
"""

import os
from pathlib import Path

# Beside one request that needs the whole context: 64 requests with 128 tokens of their own.
# Arithmetic binds from 16 rows on, so room for more at once would not make more tokens a second.
OTHER_TOKENS = 8192
SMALLEST_BYTES = 256 << 20  # tokens of small models cost little
LARGEST_SHARE = 8  # of the memory: one part in so many,
ALWAYS_BYTES = 1 << 30  # but so much wherever the model asks for it
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def default_kv_bytes(token_bytes: int, context_len: int, memory_bytes: int | None = None) -> int:
    """Room for one request of the whole context and `OTHER_TOKENS` of others, within limits.

    token_bytes: keys and values of one token in all layers; memory_bytes: of the machine, None: ask
    it.
    """
    if memory_bytes is None:
        memory_bytes = machine_memory_bytes()
    largest = max(memory_bytes // LARGEST_SHARE, ALWAYS_BYTES)
    return min(max(token_bytes * (context_len + OTHER_TOKENS), SMALLEST_BYTES), largest)


def machine_memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its control group's if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            found.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # no such control group; "max" is no limit
    return min(found)
