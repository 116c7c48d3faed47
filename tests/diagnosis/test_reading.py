"""Objects of the API are others' words: whatever shape they have, they are read, bounded and printable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.snapshot import KINDS, Builder, InvalidObject
from gpu_healthcheck.diagnosis.snapshot.nodes import read_node
from gpu_healthcheck.diagnosis.snapshot.pods import OTHER_VALUE, read_pod, shown_value
from gpu_healthcheck.healthcheck.text.boundary import LONGEST_NAME
from tests.diagnosis.states import NOW, container, node, obj, pod, snapshot

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_PARTS = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "webhooks", "involvedObject"]), _ANYTHING)


@given(kind=st.sampled_from(KINDS), parts=_PARTS)
def test_no_shape_ends_the_reading(kind: str, parts: dict[str, object]) -> None:
    """An unreadable part is skipped and reported; it never raises."""
    builder = Builder()
    builder.add(kind, parts)
    builder.add(kind, {**parts, "metadata": {"name": "x"}})
    state = builder.build(NOW)
    assert state.sees(kind)


def test_an_object_without_a_name_is_passed_over_and_named() -> None:
    builder = Builder()
    builder.add("Node", {"spec": {}})
    state = builder.build(NOW)
    assert (state.nodes, state.invalid) == ((), (InvalidObject("Node", "node", "a Node without a name"),))


def test_the_same_object_from_two_files_counts_once() -> None:
    assert len(snapshot(node("a"), node("a")).nodes) == 1


def test_an_object_with_a_value_of_the_wrong_type_is_named_and_the_others_stay() -> None:
    wrong = pod("wrong\x1b", 1)
    wrong["spec"]["nodeName"] = 5
    state = snapshot(node("a"), pod("right"), wrong)
    assert [one.meta.name for one in state.pods] == ["right"]
    reason = "spec: nodeName: expected a text, not a number"
    assert state.invalid == (InvalidObject("Pod", r"pod/team/wrong\x1b", reason),)
    assert ("Pod", rf"pod/team/wrong\x1b: {reason}") in [(row.kind, row.why) for row in diagnose(state).unseen]


@pytest.mark.parametrize("entry", [{}, [], 7])
def test_webhook_rule_with_a_value_of_the_wrong_type_is_named(entry: object) -> None:
    rules = [{"resources": [entry], "operations": ["CREATE"]}]
    state = snapshot(obj("MutatingWebhookConfiguration", "hook", webhooks=[{"name": "a", "rules": rules}]))
    assert state.webhooks == ()
    assert [one.subject for one in state.invalid] == ["mutatingwebhookconfiguration/hook"]


def test_empty_text_reads_as_the_default_of_the_api() -> None:
    tolerant = pod("x", spec={"tolerations": [{"key": "a", "operator": "", "value": "b"}]})
    state = snapshot(obj("PodGroup", "g", "team", spec={"queue": ""}, status={"phase": "Pending"}), tolerant)
    assert [group.queue for group in state.pod_groups] == ["default"]
    assert state.pods[0].spec.tolerations[0].operator == "Equal"


def test_texts_of_an_object_are_printable_and_bounded() -> None:
    raw = node("\x1b[31m" + "x" * 5000, labels={"a\n": "b\x07"})
    meta = read_node(raw).meta
    assert meta.name.startswith(r"\x1b[31mxxx")
    assert len(meta.name) == LONGEST_NAME
    assert meta.labels[r"a\n"] == r"b\x07"


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("NVIDIA_VISIBLE_DEVICES", "void", "void"),
        (
            "NVIDIA_VISIBLE_DEVICES",
            "GPU-8f1c2c9e-1b1e-4b9e-8c1e-1b1e4b9e8c1e",
            "GPU-8f1c2c9e-1b1e-4b9e-8c1e-1b1e4b9e8c1e",
        ),
        ("NVIDIA_VISIBLE_DEVICES", "hunter2 is my password", OTHER_VALUE),
        ("CONTAINERD_CONFIG", "/etc/containerd/config.toml", "/etc/containerd/config.toml"),
        ("CONTAINERD_CONFIG", "$(SECRET)", OTHER_VALUE),
        ("AWS_SECRET_ACCESS_KEY", "abc", OTHER_VALUE),
        ("CUDA_DISABLE_CONTROL", "true", "true"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m", "3000m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "s3cret", OTHER_VALUE),
        ("CUDA_DISABLE_CONTROL_TOKEN", "true", OTHER_VALUE),
    ],
)
def test_only_values_that_say_devices_or_settings_are_kept(variable: str, value: str, shown: str) -> None:
    assert shown_value(variable, value) == shown


def test_a_pod_keeps_no_secret_of_its_environment() -> None:
    raw = pod("x", containers=[container("main", 1, env=[{"name": "TOKEN", "value": "s3cret"}])])
    assert read_pod(raw).spec.containers[0].env == {"TOKEN": OTHER_VALUE}
