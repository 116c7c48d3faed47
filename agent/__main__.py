"""`python -m agent`, lean: the libraries' unused parts are left out while the program is imported."""

from __future__ import annotations

import sys

from agent.left_out import without_unused_parts


def main() -> int:
    with without_unused_parts():
        from agent.program import main as run  # noqa: PLC0415 - not before
    return run()


if __name__ == "__main__":
    sys.exit(main())
