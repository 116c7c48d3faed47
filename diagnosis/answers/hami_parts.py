"""Present each HAMi installation: its parts, the scope of its webhook, and the state of its CA. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.components import Component, Health, component_table, tag_of
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.hami.certificate import last_authority
from gpu_healthcheck.diagnosis.hami.installation import CommandLine, Installation, installations, newest_asking
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Webhook
from gpu_healthcheck.diagnosis.snapshot.pods import HAMI_EXTENDER, OTHER_VALUE, Container
from gpu_healthcheck.healthcheck.text.naming import named

COLUMNS = ("Part", "Status", "Version", "Details")
_MONITOR, _PLUGIN = "vgpu-monitor", "device-plugin"
_MOST_NAMED, _LONGEST_RULE = 5, 200


class HamiPart(Struct, frozen=True):
    """One row. `status` is text; `health` is None if the part has no health state."""

    what: str
    health: Health | None
    status: str = ""
    version: str = ""
    detail: str = ""


class InstallationTable(Struct, frozen=True):
    """Table of one installation. `name`: its namespace, and the base name of its chart's objects."""

    name: str
    scheduler_name: str
    parts: tuple[HamiPart, ...]


def installation_tables(snapshot: Snapshot) -> tuple[InstallationTable, ...]:
    """Return the tables of all installations; empty without HAMi."""
    return tuple(
        InstallationTable(
            f"{installation.namespace}/{installation.name}",
            installation.scheduler_name,
            (*_scheduler(installation), *_plugins(snapshot, installation), *_webhooks(snapshot, installation)),
        )
        for installation in installations(snapshot)
    )


def _scheduler(installation: Installation) -> Iterator[HamiPart]:
    if installation.scheduler is None:
        yield HamiPart("scheduler", Health.UNKNOWN, Health.UNKNOWN.value)
        return
    line = installation.command_line
    options = f"nodes by {line.node_policy}, cards by {line.gpu_policy}; lock expiry {_minutes(line.lock_expires)}"
    options += " (the chart's defaults)" if line == CommandLine() else ""
    if line.node_labels:
        options += f"; only nodes with {', '.join(f'{key}={value}' for key, value in line.node_labels.items())}"
    for container in installation.scheduler.spec.containers:
        if container.name == HAMI_EXTENDER and not container.init:
            yield _container("extender", installation.scheduler, container, options)
        elif not container.init:
            name = "scheduler" if container.name == "kube-scheduler" else container.name
            detail = f"{installation.scheduler.subject}, schedulerName {installation.scheduler_name}"
            yield _container(name, installation.scheduler, container, detail)


def _plugins(snapshot: Snapshot, installation: Installation) -> Iterator[HamiPart]:
    lacking = {row.component.subject: row.lacking for row in component_table(snapshot)}
    if not installation.plugins:
        yield HamiPart("device plugin", Health.UNKNOWN, Health.UNKNOWN.value)
    for plugin in installation.plugins:
        nodes = lacking.get(plugin.subject, ())
        without = f"; without it: {named(nodes, _MOST_NAMED)}" if nodes else ""
        containers = [container for container in plugin.spec.containers if not container.init]
        for container in containers:
            if container.name == _PLUGIN or len(containers) == 1:
                yield _container("device plugin", plugin, container, f"{plugin.subject}{without}")
            else:
                name = "monitor" if container.name == _MONITOR else container.name
                yield _container(name, plugin, container, plugin.subject)
        if containers and all(container.name != _MONITOR for container in containers):
            yield HamiPart("monitor", None, "none", detail=f"no container {_MONITOR} in {plugin.subject}")


def _container(name: str, component: Component, container: Container, detail: str) -> HamiPart:
    """Return the row of one container, from all pods of the component.

    If none of them is visible, the counts of the workload are used.
    """
    living, ready = [pod for pod in component.pods if not pod.over], component.ready
    if living:
        ready = sum(any(state.name == container.name and state.ready for state in pod.states) for pod in living)
    health = replace(component, ready=ready).health
    count = f"{ready} of {component.wanted} ready; " if component.wanted is not None else ""
    return HamiPart(name, health, health.value, tag_of(container.image), count + detail)


def _webhooks(snapshot: Snapshot, installation: Installation) -> Iterator[HamiPart]:
    if not installation.webhooks:
        is_visible = snapshot.sees("MutatingWebhookConfiguration")
        health = Health.DOWN if is_visible else Health.UNKNOWN
        yield HamiPart("webhook", health, "missing" if is_visible else health.value)
    for hook in installation.webhooks:
        authority = _authority(hook, snapshot.now)
        yield _webhook(snapshot, installation, hook, authority)
        yield HamiPart("selects", None, detail=_selection(hook))
        yield from _ignored_namespaces(snapshot, hook)
        policy, effect = ("Fail", "the pod is refused") if hook.fails_closed else ("Ignore", "the pod passes unchanged")
        detail = f"failurePolicy {policy}: after {hook.timeout} s {effect}"
        yield HamiPart("without a response", None, detail=detail)
        yield authority


def _webhook(snapshot: Snapshot, installation: Installation, hook: Webhook, authority: HamiPart) -> HamiPart:
    service = tuple(installation.service.split("/"))
    slices = [each for each in snapshot.endpoints if (each.meta.namespace, each.service) == service]
    ready = sum(each.ready for each in slices)
    endpoints = counted(ready, "ready endpoint") if slices else "its endpoints are not visible"
    health = Health.WORKING if ready else Health.DOWN if slices else Health.UNKNOWN
    if authority.health is Health.DOWN or not hook.on_pods:
        health = Health.DOWN
    parts = [f"{hook.configuration.subject}, service/{installation.service}: {endpoints}"]
    if not hook.on_pods:
        parts.append("none of its rules covers the creation of pods")
    # The newest pod that only HAMi can serve shows whether the webhook responds.
    newest = newest_asking(snapshot, installation)
    if newest is not None:
        has = "has" if newest.spec.scheduler == installation.scheduler_name else "lacks"
        parts.append(f"the newest pod that requests shares, {newest.subject}, {has} its scheduler")
    return HamiPart("webhook", health, health.value, detail="; ".join(parts))


def _selection(hook: Webhook) -> str:
    pods = f"pods where {hook.objects}" if str(hook.objects) else "all pods"
    namespaces = f"namespaces where {hook.namespaces}" if str(hook.namespaces) else "all namespaces"
    rules = [f"{name}: {rule[:_LONGEST_RULE]}" for name, rule in islice(hook.conditions.items(), _MOST_NAMED)]
    return f"{pods}, in {namespaces}" + (f", by matchConditions {'; '.join(rules)}" if rules else "")


def _ignored_namespaces(snapshot: Snapshot, hook: Webhook) -> Iterator[HamiPart]:
    ignored = sorted(each.name for each in snapshot.namespaces if not hook.namespaces.takes(each.labels))
    if snapshot.namespaces:
        none = f"none of the {counted(len(snapshot.namespaces), 'namespace')}"
        yield HamiPart("ignores", None, detail=named(ignored, _MOST_NAMED) if ignored else none)


def _authority(hook: Webhook, now: datetime) -> HamiPart:
    """Return the row for the webhook's CA.

    Secrets are never read, so it is unknown which certificates the CA has signed.
    """
    if not hook.ca:
        return HamiPart("its CA", Health.DOWN, "missing", detail="the webhook has no caBundle")
    authority = last_authority(hook.ca)
    if authority is None:
        why = "it is not in a saved state" if hook.ca == OTHER_VALUE else "its caBundle is not a readable CA"
        return HamiPart("its CA", Health.UNKNOWN, Health.UNKNOWN.value, detail=why)
    status = "expired" if authority.ends < now else "not yet valid" if authority.begins > now else "valid"
    detail = (
        f"{authority.name or 'without a name'}, {authority.begins:%Y-%m-%d} to {authority.ends:%Y-%m-%d}; whether it "
        "signed the scheduler's certificate is not checked: Secrets are never read"
    )
    return HamiPart("its CA", Health.WORKING if status == "valid" else Health.DOWN, status, detail=detail)


def _minutes(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
