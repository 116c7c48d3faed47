"""The API stand-in's objects in memory: versions, optimistic locking, and the history that watches follow."""

import copy
import itertools
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from gpu_healthcheck.sim.api_objects import (
    Object,
    Resource,
    already_exists,
    bad_request,
    conflict,
    not_found,
    patched,
    refuse_another_kind,
)

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class Change:
    """One change of an object, for watches."""

    version: int
    at: float  # time.monotonic()
    type: ChangeType
    resource: Resource
    object: Object


class ApiStore:
    """Objects in memory. Returned objects are shared: do not modify them."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.history: list[Change] = []
        self.oldest_version = 0
        self.version = 1
        self._objects: dict[tuple[Resource, str, str], Object] = {}

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        with self.changed:
            try:
                return self._objects[resource, namespace, name]
            except KeyError:
                raise not_found(resource, name) from None

    def find_all(self, resource: Resource, namespace: str) -> tuple[list[Object], int]:
        """Return all objects of a kind, in one or all namespaces, and the version of that state."""
        with self.changed:
            objects = [
                thing
                for (kind, within, _), thing in sorted(self._objects.items(), key=lambda entry: entry[0][1:])
                if kind == resource and namespace in ("", within)
            ]
            return objects, self.version

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        refuse_another_kind(resource, body)
        thing = copy.deepcopy(body)
        metadata = thing.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise bad_request("name or generateName is required")
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)
        with self.changed:
            if (resource, namespace, metadata["name"]) in self._objects:
                raise already_exists(resource, metadata["name"])
            thing |= {"apiVersion": resource.api_version, "kind": resource.kind}
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if resource.namespaced:
                metadata["namespace"] = namespace
            return self._store(resource, thing, "ADDED")

    def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        refuse_another_kind(resource, body)
        with self.changed:
            return self._update(resource, self.get(resource, namespace, name), copy.deepcopy(body))

    def patch(self, resource: Resource, namespace: str, name: str, change: Callable[[Object], Object]) -> Object:
        with self.changed:
            present = self.get(resource, namespace, name)
            return self._update(resource, present, change(present))

    def delete(self, resource: Resource, namespace: str, name: str, uid: str = "") -> None:
        with self.changed:
            present = copy.deepcopy(self.get(resource, namespace, name))
            if uid and uid != present["metadata"]["uid"]:
                raise conflict(resource, name)
            del self._objects[resource, namespace, name]
            self._record(resource, present, "DELETED")

    def compact(self) -> None:
        """Answer new watches of older versions with 410 from now on; running watches continue."""
        with self.changed:
            self.oldest_version = self.version

    def changes_after(self, resource: Resource, version: int, deadline: float | None) -> list[Change]:
        """Wait for changes of one kind; return none if the deadline passes first."""
        with self.changed:
            while True:
                newest_first = itertools.takewhile(lambda change: change.version > version, reversed(self.history))
                found = [change for change in newest_first if change.resource == resource]
                if found:
                    return found[::-1]
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return []
                self.changed.wait(remaining)

    def _update(self, resource: Resource, present: Object, wanted: Object) -> Object:
        before, after = present["metadata"], wanted.setdefault("metadata", {})
        version = after.get("resourceVersion") or before["resourceVersion"]
        if version != before["resourceVersion"] or after.get("uid", before["uid"]) != before["uid"]:
            raise conflict(resource, before["name"])
        for key in ("name", "namespace", "uid", "creationTimestamp", "resourceVersion"):
            if key in before:
                after[key] = before[key]
        wanted |= {"apiVersion": resource.api_version, "kind": resource.kind}
        # As in the real server, a write that changes nothing makes no new version and wakes no watch.
        return present if wanted == present else self._store(resource, wanted, "MODIFIED")

    def _store(self, resource: Resource, thing: Object, kind: ChangeType) -> Object:
        metadata = thing["metadata"]
        self._record(resource, thing, kind)
        self._objects[resource, metadata.get("namespace", ""), metadata["name"]] = thing
        return thing

    def _record(self, resource: Resource, thing: Object, kind: ChangeType) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append(Change(self.version, time.monotonic(), kind, resource, thing))
        self.changed.notify_all()


def patch_of(resource: Resource, body: Object, content_type: str, *, of_status: bool) -> Callable[[Object], Object]:
    """Return the change of a PATCH: the main resource cannot change the status, and vice versa."""

    def change(present: Object) -> Object:
        result = patched(present, body, content_type)
        if resource.has_status:
            kept = "spec" if of_status else "status"
            result.pop(kept, None)
            if kept in present:
                result[kept] = present[kept]
        return result

    return change
