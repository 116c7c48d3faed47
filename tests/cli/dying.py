"""`gpu-healthcheck quarantine`, ended by `kill -9` at one of its own writes; KILL_AT as of a sweeper's."""

from __future__ import annotations

from typing import Any

from cli.app import run
from healthcheck.cluster import client
from tests.sweeper.dying import Dying


class DyingAtWrites(Dying):
    """Asking for one's rights creates an object too, and changes nothing."""

    def _request(self, verb: str, path: str, resource: str, *rest: Any, **more: Any) -> Any:
        if resource == "selfsubjectaccessreviews":
            return super(Dying, self)._request(verb, path, resource, *rest, **more)
        return super()._request(verb, path, resource, *rest, **more)


if __name__ == "__main__":
    vars(client)["Cluster"] = DyingAtWrites
    run()
