"""Errors of requests to the cluster.

The module is separate so that code that handles the errors need not import the client.
"""

from __future__ import annotations

from gpu_healthcheck.healthcheck.text.printable import printable


class ClusterError(Exception):
    """The cluster did not carry out a request. The message gives the request and the reason.

    The message may contain text from the server that answered.
    """

    retry_after_seconds: float | None = None
    """Shortest delay before a retry that the server requests."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Unavailable(ClusterError):
    """No answer, or an answer that asks for a retry (5xx, 429)."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Blocked(Unavailable):
    """A disruption budget blocks the eviction of a pod (429), or the pod has several budgets (500)."""


class Endless(ClusterError):
    """An answer that began and did not end in time, such as a log that a kubelet sends byte by byte.

    Another try would take as long.
    """


class Unauthorized(Unavailable):
    """The server does not accept the token or certificate (401). A new one may be issued, so it is tried again."""


class Conflict(ClusterError):
    """Another client wrote the object since it was read, or an object to create already exists."""


class NotFound(ClusterError):
    """The object does not exist."""


class Forbidden(ClusterError):
    """A permission is missing, or an admission policy rejected the request.

    `verb` and `resource` describe the request.
    """

    def __init__(self, message: str, verb: str, resource: str) -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class Refused(ClusterError):
    """The server permanently rejects the request (400, 422)."""


class Unreadable(ClusterError):
    """The object exists, but has an unexpected shape or value.

    If a write gets such an answer, it was carried out.
    """
