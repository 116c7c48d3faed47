"""Dynamic resource allocation (DRA): devices that NVIDIA's driver publishes, claims, and our DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.connection import ODD, Requests, unreadable
from gpu_healthcheck.healthcheck.cluster.errors import Conflict, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.device_pools import given_out, read_slice
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule, RuleTaint, device_rule, selector_of
from gpu_healthcheck.healthcheck.node.devices import (
    CLAIM_TEMPLATE,
    DRIVER,
    AllocatedDevices,
    Device,
    GpuClaim,
    gpu_claim,
)
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.budget import holder_label
from gpu_healthcheck.healthcheck.verdict.device_taints import MissingRule

_API_PATH = "/apis/resource.k8s.io/v1"
"""Kubernetes 1.34 and newer serve it."""
_SLICES = "resourceslices"


class DraObjects(Requests):
    """Reads the objects of dynamic resource allocation. A kind that is not served counts as empty."""

    def read_given_out(self, namespace: str) -> AllocatedDevices:
        """Return the devices that the driver publishes.

        The result also shows whether a sweep's pod in the namespace could claim them.
        """
        found = given_out(
            device_slice
            for device_slice in self._each(_SLICES, self._served(_SLICES), read_slice)
            if device_slice is not None
        )
        is_used = found.devices or found.unread
        return replace(found, has_template=self._has_claim_template(namespace)) if is_used else found

    def list_gpu_claims(self) -> Iterator[GpuClaim]:
        """Yield the GPU claims of all namespaces."""
        for claim in self._each("resourceclaims", self._served("resourceclaims"), gpu_claim):
            if claim is not None:
                yield claim

    def _has_claim_template(self, namespace: str) -> bool:
        path = f"{_API_PATH}/namespaces/{quote(namespace)}/resourceclaimtemplates/{CLAIM_TEMPLATE}"
        try:
            self._json("get", path, "resourceclaimtemplates")
        except NotFound:
            return False
        return True

    def _served(self, resource: str) -> Iterator[Mapping[str, Any]]:
        with suppress(NotFound):
            yield from self._pages(f"{_API_PATH}/{resource}", resource, {})


_API = "resource.k8s.io/v1"
_RULES = "devicetaintrules"
_RULES_PATH = f"/apis/{_API}/{_RULES}"
NOT_SERVED = f"the API server serves no DeviceTaintRules of {_API}, as Kubernetes 1.37 and newer do by default"
_HOLDER = f"{PREFIX}/holder"


class NotServed(NotFound):
    """The API server does not serve DeviceTaintRules in version v1."""


class DeviceTaints(Requests):
    """Reads slices and writes rules. Raises ClusterError. Safe to use from several threads."""

    def are_served(self) -> bool:
        """Whether the API server serves DeviceTaintRules. Anyone may ask, without permission for the rules."""
        try:
            served = self._json("get", f"/apis/{_API}", _API)["resources"]
        except NotFound:
            return False
        return any(resource["name"] == _RULES for resource in served)

    def list_devices(self, node_name: str) -> tuple[Device, ...]:
        query = {"fieldSelector": f"spec.nodeName={node_name},spec.driver={DRIVER}"}
        slices = list(self._pages(f"/apis/{_API}/{_SLICES}", _SLICES, query))
        try:
            found = given_out(device_slice for device_slice in map(read_slice, slices) if device_slice is not None)
        except ODD as error:
            raise Refused(unreadable(_SLICES, None, error)) from error
        if node_name in found.unread:
            raise Unavailable(f"list {_SLICES}: {DRIVER} is publishing the devices of {node_name} again")
        return tuple(found.devices.get(node_name, ()))

    def list_rules(self, node_name: str) -> tuple[DeviceRule, ...]:
        """Return the rules labelled with this node. Raises NotServed."""
        found = self._list({"labelSelector": f"{_HOLDER}={holder_label(node_name)}"})
        return tuple(self._each(_RULES, found, lambda entry: device_rule(entry, node_name)))

    def list_all_rules(self) -> tuple[DeviceRule, ...]:
        """Return the rules of all agents, except rules that another client edited.

        The result is empty if the API server does not serve DeviceTaintRules.
        """
        try:
            found = self._list({"labelSelector": f"app.kubernetes.io/name={COMPONENT},{_HOLDER}"})
        except NotServed:
            return ()
        rules = self._each(_RULES, found, lambda entry: device_rule(entry, _pool(entry)))
        return tuple(rule for rule in rules if rule.is_ours)

    def create_rule(self, wanted: MissingRule, node: NodeState) -> None:
        """Create the rule. Raises Conflict if the name exists."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        labels = {
            "app.kubernetes.io/name": COMPONENT,
            "app.kubernetes.io/component": "agent",
            _HOLDER: holder_label(node.name),
        }
        body = {
            "apiVersion": _API,
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": wanted.name,
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {"deviceSelector": selector_of(node.name, wanted.device), "taint": wanted.taint.as_object},
        }
        self._json("create", _RULES_PATH, _RULES, body)

    def change_taint(self, rule: DeviceRule, taint: RuleTaint) -> None:
        """Change severity and effect of a rule's taint. Raises Conflict if the rule was changed since it was read.

        For another effect, the API server sets `timeAdded` to its time.
        """
        self._patch_taint(rule, taint.as_object)

    def ask_again(self, rule: DeviceRule) -> None:
        """Add a second to `timeAdded` of the taint, so that the controllers that act on rules confirm the rule again.

        With NoExecute, a claim's `tolerationSeconds` count from this time: a later one would postpone evictions. Raises
        Conflict like `change_taint`.
        """
        self._patch_taint(rule, {"timeAdded": timestamp(rule.time_added + timedelta(seconds=1))})

    def delete_rule(self, rule: DeviceRule) -> bool:
        """Delete a rule and return whether it is gone.

        False means that it was changed since it was read: then it remains, and the caller reads it again.
        """
        preconditions = {"uid": rule.uid, "resourceVersion": rule.version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            self._json("delete", _path(rule), _RULES, options)
        except Conflict:
            return False
        except NotFound:
            pass
        return True

    def _patch_taint(self, rule: DeviceRule, taint: Mapping[str, str]) -> None:
        patch = {"metadata": {"resourceVersion": rule.version, "uid": rule.uid}, "spec": {"taint": taint}}
        self._json("patch", _path(rule), _RULES, patch, merge="merge")

    def _list(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        try:
            return list(self._pages(_RULES_PATH, _RULES, query))
        except NotFound as error:
            raise NotServed(NOT_SERVED) from error


def _path(rule: DeviceRule) -> str:
    return f"{_RULES_PATH}/{quote(rule.name)}"


def _pool(rule: Mapping[str, Any]) -> str:
    return str(((rule.get("spec") or {}).get("deviceSelector") or {}).get("pool", ""))
