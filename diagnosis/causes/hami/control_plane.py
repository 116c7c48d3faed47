"""Find faults of HAMi's webhook and configuration: the CA, the Jobs that create it, the leader's Service, settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.hami.denials import CHART
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.components import Role, is_ready
from gpu_healthcheck.diagnosis.facts.pod_stage import StageKind, stage
from gpu_healthcheck.diagnosis.hami.certificate import last_authority
from gpu_healthcheck.diagnosis.hami.installation import (
    Installation,
    installation_of,
    installations,
    is_scheduled,
    is_there,
    newest_asking,
)
from gpu_healthcheck.diagnosis.hami.settings import DEVICE_CONFIG, read_settings
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, FoundCause, Origin, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Webhook
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, condition_in
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload

_CONFIGURATION = "HAMi, pkg/scheduler/config, and its chart's templates/scheduler/device-configmap.yaml"
_fault = Family(None)
NO_CA = _fault(
    "HamiWebhookWithoutCa",
    "HAMi's webhook has no CA, so the API server can't trust it and never calls it.",
    "Find out why the chart's patch Job or cert-manager has not written the CA.",
    source=f"{CHART}/job-patch, certmanager.yaml",
)
CERTIFICATE_EXPIRED = _fault(
    "HamiWebhookCaExpired",
    "The CA of HAMi's webhook has expired: the API server no longer calls the webhook.",
    "Create a new certificate with the chart's Jobs or cert-manager, then restart the scheduler pods.",
    source=f"{CHART}/webhook.yaml, caBundle",
)
PATCH_FAILED = _fault(
    "HamiCertificateJobFailed",
    "A Job of HAMi's chart failed: it creates the webhook's certificate, or registers it with the API server.",
    "Read the Job's log, fix its error, and upgrade the release again.",
    source=f"{CHART}/job-patch",
)
NO_LEADER = _fault(
    "HamiSchedulerWithoutEndpoints",
    "HAMi's Service has no endpoint although its scheduler runs: webhook calls fail.",
    "Find out why no pod became the leader: only the leader has the label hami.io/scheduler-role=leader.",
    source=f"{CHART}/service.yaml",
)
UNREADABLE = _fault(
    "HamiConfigurationUnreadable",
    "HAMi's device configuration is invalid YAML: its scheduler and device plugins can't restart with it.",
    "Fix the document, then restart the scheduler and the device plugins.",
    source=_CONFIGURATION,
)
MISPLACED = _fault(
    "HamiSettingMisplaced",
    "A HAMi setting for NVIDIA's cards is outside of `nvidia:` in the configuration, so it has no effect.",
    "Move it under `nvidia:`, then restart the scheduler and the device plugins.",
    severity=CauseSeverity.MEDIUM,
    source=_CONFIGURATION,
)


_JOBS = ("-admission-create", "-admission-patch")
_LEADER = ("hami.io/scheduler-role", "leader")
_SETTLES = timedelta(minutes=5)


def find_webhook(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield webhooks that the API server can't trust. A pod changed by a webhook shows that it is called."""
    for installation in installations(snapshot):
        for hook in installation.webhooks:
            if hook.ca:
                yield from _expired(snapshot, hook)
            elif not (_has_answered(snapshot, installation) or snapshot.is_new(hook.configuration, _SETTLES)):
                yield _without_ca(installation, hook)


def find_jobs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield Jobs of the chart that failed, or can't start."""
    for installation in installations(snapshot):
        for job in snapshot.workloads:
            is_ours = job.meta.namespace == installation.namespace and job.meta.name.startswith(installation.name)
            if is_ours and job.meta.kind == "Job" and job.meta.name.endswith(_JOBS):
                yield from _failed(snapshot, job)


def find_leaderless(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield Services without an address although a scheduler pod is ready."""
    for installation in installations(snapshot):
        service = tuple(installation.service.split("/"))
        endpoints = [each for each in snapshot.endpoints if (each.meta.namespace, each.service) == service]
        ready = [pod for pod in installation.scheduler_pods if is_ready(pod)]
        lasting = [pod for pod in ready if not snapshot.is_new(pod.meta, _SETTLES)]
        if endpoints and not any(each.ready for each in endpoints) and lasting:
            yield _leaderless(installation, ready)


def find_configuration(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield unreadable files and misplaced settings, one result of each kind per ConfigMap."""
    for config_map in snapshot.config_maps if is_there(snapshot) else ():
        if DEVICE_CONFIG not in config_map.data:
            continue
        settings, subject = read_settings(config_map), config_map.meta.subject
        edit = kubectl("edit", config_map.meta)
        remedy = (f"Fix {DEVICE_CONFIG}, in its Helm values or directly: {edit}. HAMi's pods read it when they start.",)
        if settings.unreadable:
            yield FoundCause(UNREADABLE, subject, (f"{DEVICE_CONFIG}: {settings.unreadable}",), remedy)
        # Other versions may accept other keys. Only a key that is known elsewhere is certainly misplaced.
        if settings.misplaced:
            keys = settings.misplaced
            evidence = tuple(f"{DEVICE_CONFIG}: {key} is set, and HAMi reads nvidia.{key}" for key in keys)
            yield FoundCause(MISPLACED, subject, evidence, remedy)


def _has_answered(snapshot: Snapshot, installation: Installation) -> bool:
    """Whether the newest pod that only HAMi can serve has been given to its scheduler."""
    newest = newest_asking(snapshot, installation)
    if newest is not None:
        return is_scheduled(snapshot, newest)
    handled = (pod for pod in snapshot.pods if is_scheduled(snapshot, pod))
    return any(installation_of(snapshot, pod) is installation for pod in handled)


def unreachable(installation: Installation) -> tuple[Origin, ...]:
    """Return causes that may explain why the webhook did not answer, if they are found too."""
    hooks = (
        origin
        for hook in installation.webhooks
        for origin in origins((NO_CA, CERTIFICATE_EXPIRED), hook.configuration.subject)
    )
    return (*_scheduler(installation), (NO_LEADER.name, f"service/{installation.service}"), *hooks)


def _scheduler(installation: Installation) -> tuple[Origin, ...]:
    if installation.scheduler is None:
        return ()
    nodes = {f"node/{pod.spec.node}" for pod in installation.scheduler_pods if pod.spec.node}
    return origins((NOT_READY[Role.HAMI_SCHEDULER],), installation.scheduler.subject, *sorted(nodes))


def _without_ca(installation: Installation, hook: Webhook) -> FoundCause:
    policy = "Fail: no GPU pod is created" if hook.fails_closed else "Ignore: pods pass it by unchanged"
    evidence = (f"{hook.configuration.subject}: webhook {hook.name} has no caBundle; failurePolicy {policy}",)
    jobs = command("kubectl", "-n", installation.namespace, "get", "jobs,pods")
    remedy = (
        f"Check whether the chart's Job {installation.name}-admission-patch has run: {jobs}",
        "With cert-manager: check whether its CA injector runs, and whether the Certificate is ready.",
        f"Check the API server's current value: {kubectl('get', hook.configuration, '-o', 'yaml')}",
    )
    because = origins((PATCH_FAILED,), *(f"job/{installation.namespace}/{installation.name}{name}" for name in _JOBS))
    return FoundCause(NO_CA, hook.configuration.subject, evidence, remedy, because_of=because)


def _expired(snapshot: Snapshot, hook: Webhook) -> Iterator[FoundCause]:
    authority, subject = last_authority(hook.ca), hook.configuration.subject
    if authority is not None and authority.ends < snapshot.now:
        evidence = (f"{subject}: the caBundle of webhook {hook.name} ended {authority.ends:%Y-%m-%d %H:%M} UTC",)
        yield FoundCause(CERTIFICATE_EXPIRED, subject, evidence)


def _failed(snapshot: Snapshot, job: Workload) -> Iterator[FoundCause]:
    ended, done = (condition_in(job.conditions, kind, "True") for kind in ("Failed", "Complete"))
    stages = [(pod, stage(pod, snapshot.now)) for pod in snapshot.pods_under.get(job.subject, ())]
    failing = [(pod, at) for pod, at in stages if at.kind is StageKind.FAILS]
    if done or (ended is None and not failing):
        return
    evidence = [f"{job.subject}: {ended.reason}: {ended.message}"] if ended is not None else []
    evidence += [f"{pod.subject}: {at}" for pod, at in failing[:2]]
    log = command("kubectl", "-n", job.meta.namespace, "logs", f"job/{job.meta.name}", "--tail=50")
    remedy = (f"Find out why it fails: {log}", "Fix that, then upgrade the release again: Helm repeats the Job.")
    yield FoundCause(PATCH_FAILED, job.subject, tuple(evidence), remedy)


def _leaderless(installation: Installation, ready: list[Pod]) -> FoundCause:
    key, value = _LEADER
    labelled = ", ".join(pod.subject for pod in ready if pod.meta.labels.get(key) == value) or "on none of them"
    evidence = (
        f"service/{installation.service}: 0 ready addresses",
        f"ready scheduler pods: {', '.join(pod.subject for pod in ready)}",
        f"the leader's label {key}={value}: {labelled}",
    )
    leases = command("kubectl", "-n", installation.namespace, "get", "leases")
    pods = command("kubectl", "-n", installation.namespace, "get", "pods", "--show-labels")
    remedy = (
        f"Check which pod holds the scheduler's Lease: {leases}",
        f"Check which pod has the leader's label; the Lease holder sets it, with permission to patch pods: {pods}",
    )
    subject, because = f"service/{installation.service}", _scheduler(installation)
    return FoundCause(NO_LEADER, subject, evidence, remedy, because_of=because)


_HOOKS = "MutatingWebhookConfiguration"
SEARCHES = (
    Search((NO_CA, CERTIFICATE_EXPIRED), (_HOOKS,), find_webhook, is_there),
    Search((PATCH_FAILED,), ("Job",), find_jobs, is_there),
    Search((NO_LEADER,), ("EndpointSlice", "Pod"), find_leaderless, is_there),
    Search((UNREADABLE, MISPLACED), ("ConfigMap",), find_configuration),
)
