"""Why tracing cannot go on along a path."""

from umbel.frontend_dsl.errors import Site


class LeaveTrace(BaseException):
    """The path goes on in Python only. No `Exception`: nothing in a program may catch it.

    `argument`: it would go on if the argument at this path were known.
    """

    def __init__(
        self, reason: str, site: Site, *, argument: tuple[str | int, ...] | None = None
    ) -> None:
        super().__init__(f"{site}: {reason}")
        self.reason = reason
        self.site = site
        self.argument = argument


class NotTraceable(BaseException):
    """The program does something that no path may do; all of it runs eagerly."""

    def __init__(self, error: LeaveTrace) -> None:
        super().__init__(str(error))
        self.error = error


class HasEffect(NotTraceable):
    """A piece that was followed by itself changed something outside, so it must not be run twice on
    a path; it is followed as part of the program instead.
    """
