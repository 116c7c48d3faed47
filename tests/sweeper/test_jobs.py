"""The Job for one node, made from the template in our own manifest."""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.healthcheck.deep.job import JobState, TemplateError
from gpu_healthcheck.sim.control_plane import MANIFESTS
from gpu_healthcheck.sweeper.select import Candidate, JobSettings, in_the_way, job_for, job_name, tolerations

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ORDER = JobSettings("gpu-healthcheck", 1800)
LONGEST = ".".join(["ip-10-0-0-1", "a" * 60, "b" * 60, "c" * 60, "d" * 50])
assert len(LONGEST) <= 253


def template() -> dict[str, Any]:
    documents = yaml.safe_load_all((MANIFESTS / "07-sweeper.yaml").read_text())
    (found,) = (document for document in documents if document["metadata"]["name"] == "gpu-healthcheck-sweep-node")
    assert found["spec"]["suspend"] is True
    job: dict[str, Any] = found["spec"]["jobTemplate"]
    return job


def made(
    name: str = "ip-10-0-0-1.ec2.internal",
    gpus: dict[str, int] | None = None,
    order: JobSettings = ORDER,
    **change: Any,
) -> dict[str, Any]:
    node = Candidate(name, "uid-1", "p5", gpus or {"nvidia.com/gpu": 8}, None, None, "", False, False, 6 * HOUR)
    return job_for({**template(), **change}, node, order, NOW)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def test_the_job_can_run_on_its_node_only_and_belongs_to_it() -> None:
    job = made()

    (term,) = pod_of(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    name = "ip-10-0-0-1.ec2.internal"
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    assert job["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": "uid-1"}]
    assert job["metadata"]["annotations"] == {"gpu-healthcheck.aws-samples.io/node": name}


@pytest.mark.parametrize("gpus", [{"nvidia.com/gpu": 8}, {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2}])
def test_6_job_requests_every_gpu_so_that_the_scheduler_proves_them_unused(gpus: dict[str, int]) -> None:
    """Defect 6 of the scripts: a Job without a request in parallel with any work."""
    resources = pod_of(made(gpus=gpus))["containers"][0]["resources"]

    asked = {name: str(count) for name, count in gpus.items()}
    assert resources == {
        "requests": {"cpu": "100m", "memory": "512Mi", **asked},
        "limits": {"memory": "2Gi", **asked},
    }


@pytest.mark.parametrize(("gpus", "asked"), [({}, {}), ({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": "2"})])
def test_dra_devices_are_claimed_and_plugin_devices_requested(gpus: dict[str, int], asked: dict[str, str]) -> None:
    node = Candidate("n", "uid-1", "p5", gpus, None, None, "", False, False, 6 * HOUR, devices=8)
    pod = pod_of(job_for(template(), node, ORDER, NOW))

    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "gpu-healthcheck-sweep"}]
    assert pod["containers"][0]["resources"] == {
        "claims": [{"name": "gpus"}],
        "requests": {"cpu": "100m", "memory": "512Mi", **asked},
        "limits": {"memory": "2Gi", **asked},
    }


def test_template_values_stay() -> None:
    job, written = made(), template()["spec"]
    spec = job["spec"]

    assert (spec["backoffLimit"], spec["ttlSecondsAfterFinished"], spec["activeDeadlineSeconds"]) == (0, 86400, 1800)
    pod, before = pod_of(job), written["template"]["spec"]
    same = ("serviceAccountName", "priorityClassName", "restartPolicy", "tolerations", "volumes")
    assert {key: pod[key] for key in same} == {key: before[key] for key in same}
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "sweep"
    assert job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "sweep"


def test_the_settings_change_the_namespace() -> None:
    assert made(order=JobSettings("sweeps", 60))["metadata"]["namespace"] == "sweeps"
    assert pod_of(made())["containers"][0]["image"] == f"gpu-healthcheck:{__version__}"


def test_alternatives_of_the_templates_own_affinity_are_each_held_to_the_node() -> None:
    written = template()
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": []}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    written["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    before = copy.deepcopy(written)

    found = pod_of(made(spec=written["spec"]))["affinity"]["nodeAffinity"]

    here = {"key": "metadata.name", "operator": "In", "values": ["ip-10-0-0-1.ec2.internal"]}
    assert found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": [here]},
        {"matchFields": [here]},
    ]
    assert written == before


@pytest.mark.parametrize(
    ("seconds", "ended"),
    [([], []), ([5], ["claiming"]), ([-50], ["claiming"]), ([-61], []), ([-900, 5], ["claiming"])],
)
def test_a_job_that_has_claimed_devices_makes_way_for_work_that_waits_since_it_began(
    seconds: list[float], ended: list[str]
) -> None:
    jobs = [JobState(name, "ns", "u", "n", NOW, claims=name == "claiming") for name in ("claiming", "asking")]
    unplaced = [NOW + timedelta(seconds=second) for second in seconds]

    assert [job.name for job in in_the_way(jobs, unplaced)] == ended


@pytest.mark.parametrize("name", ["n", "ip-10-0-0-1.ec2.internal", LONGEST, "a" * 253, "0" * 62 + "-x", "---"])
def test_a_jobs_name_is_a_label_whatever_the_nodes_is(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", job_name(name, NOW))


def test_no_two_jobs_have_the_same_name() -> None:
    names = {job_name(f"{LONGEST}{number}", NOW) for number in range(10)}
    names |= {job_name(LONGEST, NOW + timedelta(seconds=number)) for number in range(10)}
    assert len(names) == 20


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"template": {"spec": {"containers": []}}}}])
def test_a_template_without_a_container_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        tolerations(broken)
