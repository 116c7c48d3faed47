"""How a request to the cluster fails. A module of its own: who handles an error need not import the client."""

from __future__ import annotations

from healthcheck.text.printable import printable


class ClusterError(Exception):
    """The cluster did not do what it was asked. The message says what and why; whoever answered may have written it."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Unavailable(ClusterError):
    """Nobody answered, or the answer was to come again (5xx, 429, an expired token): worth another try."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Conflict(ClusterError):
    """Somebody else wrote the object since it was read, or it is already there."""


class NotFound(ClusterError):
    """The object is not there."""


class Forbidden(ClusterError):
    """A permission is missing, or an admission policy said no. `verb` and `resource` are what was tried."""

    def __init__(self, message: str, verb: str, resource: str) -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class Refused(ClusterError):
    """The server understood and will never do it (400, 422)."""


class Unreadable(ClusterError):
    """The object is there, of a shape or with values that nobody thought of. A write that was answered so is done."""
