"""`gpu-healthcheck quarantine`, ended by `kill -9` at one of its own writes; KILL_AT as of a sweeper's."""

from __future__ import annotations

from typing import Any

from gpu_healthcheck.cli.app import run
from tests.sweeper.dying import Dying, die_at_writes


class DyingAtWrites(Dying):
    """Asking for one's rights creates an object too, and changes nothing."""

    def request(self, verb: str, path: str, resource: str, *rest: Any, **more: Any) -> Any:
        if resource == "selfsubjectaccessreviews":
            return super(Dying, self).request(verb, path, resource, *rest, **more)
        return super().request(verb, path, resource, *rest, **more)


if __name__ == "__main__":
    die_at_writes(DyingAtWrites)
    run()
