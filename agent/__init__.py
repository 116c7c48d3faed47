"""The DaemonSet's program: look, judge, decide and tell, on a schedule and at every kernel line."""

import sys

# structlog's console renderer would load rich: 4 MiB that an agent which logs JSON never uses.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
