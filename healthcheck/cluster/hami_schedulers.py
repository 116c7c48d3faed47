"""Client that tests whether HAMi's schedulers obey cordons of cards.

Not part of `client`, so that an agent that cordons no cards does not load it.
"""

from __future__ import annotations

from urllib.parse import quote

from gpu_healthcheck.healthcheck.cluster.connection import Requests
from gpu_healthcheck.healthcheck.cluster.errors import NotFound
from gpu_healthcheck.healthcheck.node.hami import WEBHOOK, scheduler_places, why_ignored

_WEBHOOKS = "mutatingwebhookconfigurations"


class HamiSchedulers(Requests):
    """Reads webhooks and Deployments of HAMi's schedulers. Raises ClusterError. Safe to use from several threads."""

    def why_ignored(self) -> str:
        """Return why a scheduler of HAMi may give a cordoned card to a pod; '' if none does.

        All installations count: each of their schedulers may serve the node.
        """
        configurations = self._pages(f"/apis/admissionregistration.k8s.io/v1/{_WEBHOOKS}", _WEBHOOKS, {})
        places = sorted({place for configuration in configurations for place in scheduler_places(configuration)})
        if not places:
            return f"no webhook {WEBHOOK} shows HAMi's scheduler, and so its version"
        return next(filter(None, (self._why_ignored(*place) for place in places)), "")

    def _why_ignored(self, namespace: str, name: str) -> str:
        path = f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/deployments/{quote(name, safe='')}"
        try:
            return why_ignored(self._json("get", path, "deployments"))
        except NotFound:
            return f"HAMi's scheduler {namespace}/{name}, which its webhook names, does not exist"
