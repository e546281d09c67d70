"""Paths that are kept for calls to come, though no request runs on them now. Used by `RadixCache`.

A pin is a lease that nobody computes with. It gives way: who is short of blocks drops pins before
any request has to give its own up, so pins never cost more than what they keep.
"""

from umbel.radix_cache.lease import Lease

MAX_PINS = 256  # with more, the longest goes


class Pins:
    """Leases by the number that their owner gave them."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self.num_tokens = 0  # of all paths, those that share counted each
        self.total_dropped = 0

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, pin_id: int, lease: Lease) -> None:
        """Take over `lease`. A number that is taken gets the new path instead."""
        self.remove(pin_id)
        self._leases[pin_id] = lease
        self.num_tokens += lease.num_tokens
        if len(self._leases) > MAX_PINS:
            self.drop()

    def remove(self, pin_id: int) -> None:
        """Nothing happens if it is gone: it may have been dropped."""
        lease = self._leases.pop(pin_id, None)
        if lease is not None:
            self.num_tokens -= lease.num_tokens
            lease.release()

    def drop(self) -> bool:
        """Give up the longest path, which frees most: the short ones are what many share. False if
        there is none.
        """
        if not self._leases:
            return False
        self.remove(max(self._leases, key=lambda pin_id: self._leases[pin_id].num_tokens))
        self.total_dropped += 1
        return True

    def clear(self) -> None:
        for pin_id in list(self._leases):
            self.remove(pin_id)

    def all_hold(self) -> bool:
        """Whether each holds its path: an invariant."""
        leases = self._leases.values()
        is_held = all(one.node is not None and one in one.node.leases for one in leases)
        return is_held and self.num_tokens == sum(one.num_tokens for one in leases)
