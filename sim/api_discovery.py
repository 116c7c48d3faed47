"""Answers to kubectl's discovery requests: groups, versions and resources. Pure."""

from sim.api_objects import NODES, RESOURCES, Object, Resource

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovered(path: str) -> Object | None:
    """Return the answer to a discovery request; None for any other path."""
    groups = sorted({resource.api_version for resource in RESOURCES if resource.group})
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(version) for version in groups]}
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "simulated"}
    for version in ("v1", *groups):
        if path == f"/{'apis' if '/' in version else 'api'}/{version}":
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": version,
                "resources": [_listed(known) for known in RESOURCES if known.api_version == version],
            }
    return None


def _group(api_version: str) -> Object:
    group, _, version = api_version.partition("/")
    entry = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _listed(resource: Resource) -> Object:
    return {
        "name": resource.name,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": VERBS,
        "shortNames": ["no"] if resource == NODES else [],
    }
