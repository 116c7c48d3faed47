"""The API stand-in answers Kubernetes' own Python client as the real server does."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from gpu_healthcheck.sim.api_stand_in import ApiStandIn

NODE = "gpu-node-1"
TAINT = {"key": "sick", "value": "true", "effect": "NoSchedule"}
MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture
def stand_in() -> Iterator[ApiStandIn]:
    with ApiStandIn(NODE, "gpu-node-2") as stand_in:
        yield stand_in


# Any: the client's types take every field for optional, and no body for a plain dict.
@pytest.fixture
def api(stand_in: ApiStandIn, tmp_path: Path) -> Any:
    settings = client.Configuration()
    config.load_kube_config(str(stand_in.kubeconfig(tmp_path / "config")), client_configuration=settings)
    settings.retries = False
    return client.CoreV1Api(client.ApiClient(settings))


@pytest.fixture
def leases(api: Any) -> Any:
    return client.CoordinationV1Api(api.api_client)


def _refusal(call: Callable[..., Any], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(client.ApiException) as refused:
        call(*arguments)
    status = json.loads(refused.value.body or "")
    assert (status["kind"], status["code"]) == ("Status", refused.value.status)
    return refused.value.status, status["reason"], status["message"]


class TestReading:
    def test_stand_in_returns_a_node_by_name(self, api: Any) -> None:
        node = api.read_node(NODE)

        assert node.metadata.labels["node.kubernetes.io/instance-type"] == "p5.48xlarge"
        assert [(condition.type, condition.status) for condition in node.status.conditions] == [("Ready", "True")]

    def test_stand_in_returns_a_list_in_pages(self, api: Any) -> None:
        first = api.list_node(limit=1)
        second = api.list_node(limit=1, _continue=first.metadata._continue)

        assert [node.metadata.name for node in first.items + second.items] == [NODE, "gpu-node-2"]
        assert (first.metadata.remaining_item_count, second.metadata._continue) == (1, None)

    @pytest.mark.parametrize(
        ("selector", "names"),
        [
            ({"field_selector": "metadata.name=gpu-node-2"}, ["gpu-node-2"]),
            ({"label_selector": "nvidia.com/gpu.present=true"}, [NODE, "gpu-node-2"]),
            ({"label_selector": "kubernetes.io/hostname!=gpu-node-2,nvidia.com/gpu.present"}, [NODE]),
            ({"label_selector": "!nvidia.com/gpu.present"}, []),
            ({"label_selector": "kubernetes.io/hostname in (gpu-node-2,x),nvidia.com/gpu.present"}, ["gpu-node-2"]),
        ],
    )
    def test_stand_in_filters_a_list_by_selectors(self, api: Any, selector: dict[str, str], names: list[str]) -> None:
        assert [node.metadata.name for node in api.list_node(**selector).items] == names


class TestKinds:
    @pytest.mark.parametrize(
        ("named", "refusal"),
        [
            ({"kind": "NodeEvent"}, "NodeEvent in version 'v1' cannot be handled as a Event"),
            ({"apiVersion": "v2"}, "Event in version 'v2' cannot be handled as a Event"),
        ],
    )
    def test_stand_in_refuses_an_object_of_another_kind(self, api: Any, named: dict[str, str], refusal: str) -> None:
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {}, **named}

        assert _refusal(api.create_namespaced_event, "default", event) == (400, "BadRequest", refusal)


class TestPatching:
    @pytest.mark.parametrize("content_type", [None, MERGE_PATCH])
    def test_stand_in_patch_replaces_the_list_of_taints(self, api: Any, content_type: str | None) -> None:
        api.patch_node(NODE, {"spec": {"taints": [TAINT, TAINT | {"key": "other"}]}}, _content_type=content_type)
        node = api.patch_node(NODE, {"spec": {"taints": [TAINT]}}, _content_type=content_type)

        assert [taint.key for taint in node.spec.taints] == ["sick"]

    def test_stand_in_refuses_a_stale_resource_version(self, api: Any, stand_in: ApiStandIn) -> None:
        stale = api.read_node(NODE).metadata.resource_version
        stand_in.edit_node(NODE, {"metadata": {"labels": {"other": "writer"}}})
        patch = {"metadata": {"resourceVersion": stale, "labels": {"a": "1"}}}

        code, reason, message = _refusal(api.patch_node, NODE, patch)

        assert (code, reason) == (409, "Conflict")
        assert message.startswith(f'Operation cannot be fulfilled on nodes "{NODE}": the object has been modified')
        assert "a" not in stand_in.node(NODE)["metadata"]["labels"]
        assert [(write.method, write.status) for write in stand_in.writes] == [("PATCH", 409)]

    def test_stand_in_patch_without_a_change_keeps_the_version(self, api: Any) -> None:
        first = api.patch_node(NODE, {"metadata": {"labels": {"a": "1"}}})
        second = api.patch_node(NODE, {"metadata": {"labels": {"a": "1"}}})

        assert second.metadata.resource_version == first.metadata.resource_version

    def test_stand_in_merges_conditions_by_type(self, api: Any) -> None:
        for status in ("Unknown", "False"):
            api.patch_node_status(NODE, {"status": {"conditions": [{"type": "GpuHealthy", "status": status}]}})
        conditions = api.read_node(NODE).status.conditions

        assert [(condition.type, condition.status) for condition in conditions] == [
            ("Ready", "True"),
            ("GpuHealthy", "False"),
        ]

    def test_stand_in_writes_spec_and_status_separately(self, api: Any) -> None:
        api.patch_node(NODE, {"status": {"phase": "through the node"}})
        api.patch_node_status(NODE, {"spec": {"taints": [TAINT]}})
        node = api.read_node(NODE)

        assert (node.status.phase, node.spec.taints) == (None, None)


class TestEventsAndLeases:
    def test_stand_in_deletes_a_lease_only_with_its_uid(self, leases: Any) -> None:
        made = leases.create_namespaced_lease("gpu", {"metadata": {"name": "slot-0"}})

        def delete(uid: str) -> None:
            leases.delete_namespaced_lease("slot-0", "gpu", body={"preconditions": {"uid": uid}})

        assert _refusal(delete, "another")[:2] == (409, "Conflict")
        delete(made.metadata.uid)
        assert leases.list_namespaced_lease("gpu").items == []

    def test_stand_in_renews_replaces_and_deletes_a_lease(self, leases: Any) -> None:
        made = leases.create_namespaced_lease("gpu", {"metadata": {"name": NODE}, "spec": {"holderIdentity": "a"}})
        leases.patch_namespaced_lease(NODE, "gpu", {"spec": {"leaseDurationSeconds": 40}})
        renewed = leases.read_namespaced_lease(NODE, "gpu")
        assert (renewed.spec.holder_identity, renewed.spec.lease_duration_seconds) == ("a", 40)
        assert renewed.metadata.uid == made.metadata.uid

        renewed.spec.holder_identity = "b"
        assert leases.replace_namespaced_lease(NODE, "gpu", renewed).spec.holder_identity == "b"
        assert _refusal(leases.replace_namespaced_lease, NODE, "gpu", renewed)[:2] == (409, "Conflict")

        leases.delete_namespaced_lease(NODE, "gpu")
        assert _refusal(leases.read_namespaced_lease, NODE, "gpu")[:2] == (404, "NotFound")
        assert leases.list_namespaced_lease("gpu").items == []


class TestWatching:
    def test_stand_in_watch_begins_with_the_present_node(self, api: Any, stand_in: ApiStandIn) -> None:
        seen = []
        for event in watch.Watch().stream(api.list_node, field_selector=f"metadata.name={NODE}", timeout_seconds=60):
            seen.append((event["type"], event["object"].metadata.name, event["object"].metadata.labels.get("a")))
            if len(seen) == 1:
                stand_in.edit_node("gpu-node-2", {"metadata": {"labels": {"a": "not watched"}}})
                stand_in.edit_node(NODE, {"metadata": {"labels": {"a": "1"}}})
            elif len(seen) == 2:
                stand_in.delete_node(NODE)
            else:
                break

        assert seen == [("ADDED", NODE, None), ("MODIFIED", NODE, "1"), ("DELETED", NODE, "1")]

    def test_stand_in_watch_from_a_version_returns_later_changes(self, api: Any, stand_in: ApiStandIn) -> None:
        version = api.list_node().metadata.resource_version
        stand_in.edit_node(NODE, {"metadata": {"labels": {"a": "1"}}})

        events = watch.Watch().stream(api.list_node, resource_version=version, timeout_seconds=60)

        assert next(events)["type"] == "MODIFIED"

    def test_stand_in_watch_ends_with_a_bookmark(self, api: Any, stand_in: ApiStandIn) -> None:
        query = "watch=true&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion="
        version = api.list_node().metadata.resource_version
        lines = _get(f"{stand_in.endpoint}/api/v1/nodes?{query}{version}").splitlines()

        assert [json.loads(line)["type"] for line in lines] == ["BOOKMARK"]
        assert json.loads(lines[0])["object"]["metadata"]["resourceVersion"] == version

    def test_stand_in_refuses_a_watch_from_a_compacted_version(self, stand_in: ApiStandIn) -> None:
        stand_in.edit_node(NODE, {"metadata": {"labels": {"a": "1"}}})
        stand_in.store.compact()

        event = json.loads(_get(f"{stand_in.endpoint}/api/v1/nodes?watch=true&resourceVersion=1"))

        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


class TestWaiting:
    def test_stand_in_reports_the_time_of_the_write(self, api: Any, stand_in: ApiStandIn) -> None:
        api.patch_node(NODE, {"metadata": {"labels": {"a": "1"}}})
        api.patch_node(NODE, {"metadata": {"labels": {"b": "2"}}})
        first, second = stand_in.writes

        at = stand_in.wait_for(lambda node: node["metadata"]["labels"].get("a") == "1", timeout=0)

        assert at <= first.at <= second.at
        assert first.body == {"metadata": {"labels": {"a": "1"}}}


class TestFailures:
    def test_stand_in_refusal_names_the_missing_permission(self, leases: Any, api: Any, stand_in: ApiStandIn) -> None:
        stand_in.fail_with(403, path_part="/leases")

        _, reason, message = _refusal(leases.read_namespaced_lease, NODE, "gpu")

        assert reason == "Forbidden"
        assert 'cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "gpu"' in message
        assert api.read_node(NODE).metadata.name == NODE

    def test_stand_in_that_hangs_drops_the_request(self, api: Any, stand_in: ApiStandIn) -> None:
        stand_in.hang()
        with pytest.raises(HTTPError, match="Read timed out"):
            api.patch_node(NODE, {"metadata": {"labels": {"a": "1"}}}, _request_timeout=0.2)

        stand_in.recover()
        assert "a" not in api.read_node(NODE).metadata.labels
        assert stand_in.writes == []

    @pytest.mark.parametrize("done", [False, True])
    def test_stand_in_holds_a_request_before_or_after_its_execution(
        self, api: Any, stand_in: ApiStandIn, done: bool
    ) -> None:
        reached = stand_in.stop_at("PATCH", f"/nodes/{NODE}", done=done)
        with pytest.raises(HTTPError, match="Read timed out"):
            api.patch_node(NODE, {"metadata": {"labels": {"a": "1"}}}, _request_timeout=0.2)

        assert reached.is_set()
        assert ("a" in api.read_node(NODE).metadata.labels) is done
        stand_in.recover()
        assert ("a" in api.read_node(NODE).metadata.labels) is done
        assert api.patch_node(NODE, {"metadata": {"labels": {"b": "1"}}}).metadata.labels["b"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/api/v1/secrets", "", 404),
        ("PATCH", "/api/v1/nodes/gpu-node-1", "{}", 415),  # urllib calls it a form
        ("GET", "/nonsense", "", 404),
        ("GET", "/api/v1/nodes?limit=many", "", 400),
        ("GET", "/api/v1/nodes?labelSelector=a+notin+(b)", "", 400),
        ("POST", "/api/v1/namespaces/default/events", "no json", 400),
        ("POST", "/api/v1/namespaces/default/events", "[]", 400),
        ("POST", "/api/v1/namespaces/default/events", "{}", 400),
    ],
)
def test_stand_in_answers_a_bad_request_with_a_status(
    stand_in: ApiStandIn, method: str, path: str, body: str, code: int
) -> None:
    request = urllib.request.Request(stand_in.endpoint + path, data=body.encode() or None, method=method)
    with pytest.raises(urllib.error.HTTPError) as refused, _opener().open(request, timeout=60):
        pass
    with refused.value:
        assert json.loads(refused.value.read())["code"] == refused.value.code == code


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _get(url: str) -> str:
    with _opener().open(url, timeout=60) as answer:
        return str(answer.read(), "utf-8")
