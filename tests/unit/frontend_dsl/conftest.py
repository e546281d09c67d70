"""No test here may hang: after five minutes all stacks are printed and the run ends."""

import faulthandler
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _ends_in_time() -> Iterator[None]:
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
