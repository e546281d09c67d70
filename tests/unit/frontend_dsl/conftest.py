"""No test here may hang: after a minute the stacks of all threads are printed and the run ends."""

import faulthandler
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _ends_within_a_minute() -> Iterator[None]:
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
