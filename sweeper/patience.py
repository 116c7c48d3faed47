"""Asking the cluster again, where nobody answers or another was faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tenacity

from healthcheck.cluster.errors import Conflict, Forbidden, Unavailable

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0
"""How long one question to the cluster is asked again."""
_FORBIDDEN_SECONDS, _FORBIDDEN_AGAIN_SECONDS = 15.0, 0.5
_LONGEST_PAUSE_SECONDS = 10.0
_BETWEEN_WATCHES_SECONDS = 1.0


def patiently(ask: Callable[[], T]) -> T:
    """Asks again while nobody answers or another was faster, for a minute at most; then raises what was said.

    What is forbidden is asked again for some seconds: an API server that has just started does not know its roles yet.
    """
    permitted = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Forbidden),
        wait=tenacity.wait_fixed(_FORBIDDEN_AGAIN_SECONDS),
        stop=tenacity.stop_after_delay(_FORBIDDEN_SECONDS),
        reraise=True,
    )
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((Unavailable, Conflict)),
        wait=pause,
        stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
        reraise=True,
    )
    answer: T = again(permitted, ask)
    return answer


def pause(state: tenacity.RetryCallState) -> float:
    """Seconds until the next try, as long as the server asked for, or longer each time."""
    error = state.outcome.exception() if state.outcome else None
    if error is None:
        return _BETWEEN_WATCHES_SECONDS
    asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
    return max(asked, tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS)(state))
