"""The C library's heap: what glibc keeps of freed memory goes back to the system where much was
freed that nobody will want again soon.
"""

import ctypes

# How long the engine has nothing to do before it gives back what steps and grammars have freed: not
# between the requests of somebody who is at it, since memory that comes back is cleared.
GIVE_BACK_AFTER_S = 1.0

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # None: it is not glibc


def give_back() -> None:
    """Tens of MiB after loading a model and after measuring the machine's limits. Does not hold the
    interpreter's lock meanwhile."""
    if _trim is not None:
        _trim(0)
