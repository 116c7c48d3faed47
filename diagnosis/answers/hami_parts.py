"""Present each HAMi installation: its parts, the scope of its webhook, and the state of its CA. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.facts.components import Component, Health, component_table, tag_of
from diagnosis.facts.quantity import counted
from diagnosis.hami.certificate import last_authority
from diagnosis.hami.installation import CommandLine, Installation, installations, newest_asking
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import HAMI_EXTENDER, OTHER_VALUE, Container
from diagnosis.snapshot.policy_objects import Webhook
from healthcheck.text.naming import named

COLUMNS = ("Part", "Status", "Version", "Details")
_MONITOR, _PLUGIN = "vgpu-monitor", "device-plugin"
_MOST_NAMED, _MOST_RULE = 5, 200


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
    tables = []
    for installation in installations(snapshot):
        parts = (*_schedulers(installation), *_plugins(snapshot, installation), *_webhooks(snapshot, installation))
        tables.append(
            InstallationTable(f"{installation.namespace}/{installation.name}", installation.scheduler_name, parts)
        )
    return tuple(tables)


def _schedulers(installation: Installation) -> Iterator[HamiPart]:
    if installation.scheduler is None:
        yield HamiPart("scheduler", Health.UNKNOWN, Health.UNKNOWN.value)
        return
    line = installation.command_line
    how = f"nodes by {line.node_policy}, cards by {line.gpu_policy}; lock expiry {_minutes(line.lock_expires)}"
    how += " (the chart's defaults)" if line == CommandLine() else ""
    if line.node_labels:
        how += f"; only nodes with {', '.join(f'{key}={text}' for key, text in line.node_labels.items())}"
    for container in installation.scheduler.spec.containers:
        if not container.init:
            mine = container.name == HAMI_EXTENDER
            name = "extender" if mine else "scheduler" if container.name == "kube-scheduler" else container.name
            message = how if mine else f"{installation.scheduler.subject}, schedulerName {installation.scheduler_name}"
            yield _of_container(name, installation.scheduler, container, message)


def _plugins(snapshot: Snapshot, installation: Installation) -> Iterator[HamiPart]:
    lacking = {row.component.subject: row.lacking for row in component_table(snapshot)}
    if not installation.plugins:
        yield HamiPart("device plugin", Health.UNKNOWN, Health.UNKNOWN.value)
    for plugin in installation.plugins:
        nodes = lacking.get(plugin.subject, ())
        without = f"; without it: {named(nodes, _MOST_NAMED)}" if nodes else ""
        own = [container for container in plugin.spec.containers if not container.init]
        for container in own:
            mine = container.name == _PLUGIN or len(own) == 1
            name = "monitor" if container.name == _MONITOR else "device plugin" if mine else container.name
            yield _of_container(name, plugin, container, f"{plugin.subject}{without if mine else ''}")
        if own and all(container.name != _MONITOR for container in own):
            yield HamiPart("monitor", None, "none", detail=f"no container {_MONITOR} in {plugin.subject}")


def _of_container(name: str, component: Component, container: Container, message: str) -> HamiPart:
    """Return the row of one container, from all pods of the component.

    If none of them is visible, the counts of the workload are used.
    """
    living = [pod for pod in component.pods if not pod.over]
    ready = component.ready
    if living:
        ready = sum(any(state.name == container.name and state.ready for state in pod.states) for pod in living)
    health = replace(component, ready=ready).health
    of = f"{ready} of {component.wanted} ready; " if component.wanted is not None else ""
    return HamiPart(name, health, health.value, tag_of(container.image), of + message)


def _webhooks(snapshot: Snapshot, installation: Installation) -> Iterator[HamiPart]:
    if not installation.webhooks:
        seen = snapshot.sees("MutatingWebhookConfiguration")
        health = Health.DOWN if seen else Health.UNKNOWN
        yield HamiPart("webhook", health, "missing" if seen else health.value)
    for hook in installation.webhooks:
        trust = _trust(hook, snapshot.now)
        yield _webhook(snapshot, installation, hook, trust)
        yield HamiPart("selects", None, detail=_taken(hook))
        yield from _left_alone(snapshot, hook)
        fails = "the pod is refused" if hook.fails_closed else "the pod passes unchanged"
        policy = "Fail" if hook.fails_closed else "Ignore"
        yield HamiPart("without a response", None, detail=f"failurePolicy {policy}: after {hook.timeout} s {fails}")
        yield trust


def _webhook(snapshot: Snapshot, installation: Installation, hook: Webhook, trust: HamiPart) -> HamiPart:
    namespace, _, name = installation.service.partition("/")
    known = [each for each in snapshot.endpoints if (each.meta.namespace, each.service) == (namespace, name)]
    ready = sum(each.ready for each in known)
    behind = counted(ready, "ready endpoint") if known else "its endpoints are not visible"
    health = Health.WORKING if ready else Health.DOWN if known else Health.UNKNOWN
    if trust.health is Health.DOWN or not hook.on_pods:
        health = Health.DOWN
    pods = "" if hook.on_pods else "; none of its rules covers the creation of pods"
    parts = f"{hook.configuration.subject}, service/{installation.service}"
    message = f"{parts}: {behind}{pods}{_last_answer(snapshot, installation)}"
    return HamiPart("webhook", health, health.value, detail=message)


def _last_answer(snapshot: Snapshot, installation: Installation) -> str:
    """Describe whether the newest pod that only HAMi can serve has HAMi's scheduler."""
    newest = newest_asking(snapshot, installation)
    if newest is None:
        return ""
    seen = newest.spec.scheduler == installation.scheduler_name
    return f"; the newest pod that requests shares, {newest.subject}, {'has' if seen else 'lacks'} its scheduler"


def _taken(hook: Webhook) -> str:
    pods = f"pods where {hook.objects}" if str(hook.objects) else "all pods"
    places = f"namespaces where {hook.namespaces}" if str(hook.namespaces) else "all namespaces"
    rules = [f"{name}: {text[:_MOST_RULE]}" for name, text in islice(hook.conditions.items(), _MOST_NAMED)]
    return f"{pods}, in {places}" + (f", by matchConditions {'; '.join(rules)}" if rules else "")


def _left_alone(snapshot: Snapshot, hook: Webhook) -> Iterator[HamiPart]:
    alone = sorted(namespace.name for namespace in snapshot.namespaces if not hook.namespaces.takes(namespace.labels))
    if snapshot.namespaces:
        message = (
            named(alone, _MOST_NAMED) if alone else f"none of the {counted(len(snapshot.namespaces), 'namespace')}"
        )
        yield HamiPart("ignores", None, detail=message)


def _trust(hook: Webhook, now: datetime) -> HamiPart:
    """Return the row for the webhook's CA.

    Secrets are never read, so it is unknown which certificates the CA has signed.
    """
    what, authority = "its CA", last_authority(hook.ca) if hook.ca else None
    text = "whether it signed the scheduler's certificate is not checked: Secrets are never read"
    if not hook.ca:
        return HamiPart(what, Health.DOWN, "missing", detail="the webhook has no caBundle")
    if authority is None:
        why = "it is not in a saved state" if hook.ca == OTHER_VALUE else "its caBundle is not a readable CA"
        return HamiPart(what, Health.UNKNOWN, Health.UNKNOWN.value, detail=why)
    status = "expired" if authority.ends < now else "not yet valid" if authority.begins > now else "valid"
    until = f"{authority.name or 'without a name'}, {authority.begins:%Y-%m-%d} to {authority.ends:%Y-%m-%d}; {text}"
    return HamiPart(what, Health.WORKING if status == "valid" else Health.DOWN, status, detail=until)


def _minutes(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
