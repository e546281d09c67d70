"""The requests that wait, and which of them is admitted next: what shares most with the cache.

Used by the scheduler. By arrival at heart: somebody younger goes first only where that saves
computing, and each request is overtaken by at most `MAX_OVERTAKERS` younger ones: nobody starves.
A choice costs a bounded number of look-ups however long the queue is.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice

from umbel.runtime.request import Request

MAX_OVERTAKERS = 256  # requests that arrived later; the age at which a request goes first
LEAST_GAIN = 32  # tokens more than the oldest one's match: less is not worth the order
NUM_PROBED = 16  # of the oldest requests, whose match in the cache is looked up in each step
LEVELS = (32, 128, 512, 2048, 8192)  # prefixes of so many tokens are compared among those who wait


class WaitingQueue:
    """Requests by arrival, oldest first, and an index of the prefixes that they share.

    `num_matched(request)`: how many of its tokens the cache has or is about to compute.
    """

    def __init__(self, num_matched: Callable[[Request], int]) -> None:
        self._num_matched = num_matched
        self._requests: list[Request] = []
        self._sharing: dict[int, list[Request]] = {}  # by hash of a prefix; each by arrival
        self._keys: dict[int, list[int]] = {}  # of a request, shortest prefix first, by its id
        self._last_keys: list[int] = []  # of the request that was admitted last
        self._matches: dict[int, int] = {}  # looked up in this step, by request id

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_arrival)
        keys = self._keys[request.request_id] = _prefix_keys(request)
        for key in keys:
            insort(self._sharing.setdefault(key, []), request, key=_arrival)

    def remove(self, request: Request) -> None:
        _remove(self._requests, request)
        for key in self._keys.pop(request.request_id):
            sharing = self._sharing[key]
            _remove(sharing, request)
            if not sharing:
                del self._sharing[key]

    def admit(self, request: Request) -> None:
        """Take out the request that was chosen."""
        self._last_keys = self._keys[request.request_id]
        self.remove(request)

    def begin_step(self) -> None:
        """The cache has changed: matches are looked up again."""
        self._matches.clear()

    def choose(self) -> Request:
        """Who is admitted next; there is somebody.

        The oldest, unless one of its next neighbours, or the oldest of those that share most with
        the last one admitted, finds so much more in the cache. One that was preempted always goes
        before younger ones: it holds up what was promised first.
        """
        oldest = self._requests[0]
        if len(self._requests) == 1 or oldest.num_preemptions:
            return oldest
        latest = oldest.arrival + MAX_OVERTAKERS
        best, best_match = oldest, self._match(oldest) + LEAST_GAIN - 1
        for request in self._candidates():
            if request.arrival <= latest and (match := self._match(request)) > best_match:
                best, best_match = request, match
        return best

    def _candidates(self) -> Iterator[Request]:
        follower = next(
            (self._sharing[key][0] for key in reversed(self._last_keys) if key in self._sharing),
            None,
        )
        if follower is not None:
            self._matches.pop(follower.request_id, None)  # those before it have added to the cache
            yield follower
        yield from islice(self._requests, 1, NUM_PROBED)

    def _match(self, request: Request) -> int:
        match = self._matches.get(request.request_id)
        if match is None:
            match = self._matches[request.request_id] = self._num_matched(request)
        return match


def _prefix_keys(request: Request) -> list[int]:
    tokens = request.tokens
    return [
        hash((request.namespace, length, *tokens[:length]))
        for length in LEVELS
        if length <= len(tokens)
    ]


def _arrival(request: Request) -> int:
    return request.arrival


def _remove(requests: list[Request], request: Request) -> None:
    index = bisect_left(requests, request.arrival, key=_arrival)
    assert requests[index] is request, "the queue is ordered by arrival"
    del requests[index]
