"""With any content of HAMi's annotations and messages, a diagnosis ends, and its output is printable."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_healthcheck.diagnosis.answers.hami_chain import hami_chains
from gpu_healthcheck.diagnosis.answers.hami_parts import installation_tables
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from tests.diagnosis.hami.hami_states import asking, hami, hami_node, unplaced, vgpu_pod
from tests.diagnosis.hami.test_two_installations import with_flags
from tests.diagnosis.states import Object, event, snapshot
from tests.hostile import ANY_TEXT

_PARTS = st.sampled_from(
    ("GPU-a-0,NVIDIA,", "1024,10:;", "[{", '"id":"x"', "2026-11-22T11:59:00Z,", "0/1 nodes", "Card")
)
TEXT = st.one_of(ANY_TEXT, st.lists(st.one_of(_PARTS, ANY_TEXT), max_size=4).map("".join))
NODE = st.dictionaries(st.sampled_from(("node-handshake", "mutex.lock", "device-cordon")), TEXT)
POD = st.dictionaries(
    st.sampled_from(("vgpu-node", "vgpu-devices-allocated", "bind-phase", "bind-time", "vgpu-mig-allocations")), TEXT
)


@settings(max_examples=60, deadline=None)
@given(on_node=NODE, on_pod=POD, register=TEXT, message=TEXT, version=TEXT)
def test_any_annotation_and_message_is_printable(
    on_node: dict[str, str], on_pod: dict[str, str], register: str, message: str, version: str
) -> None:
    own = hami_node("a", register=register, annotations={f"hami.io/{key}": name for key, name in on_node.items()})
    odd = {f"hami.io/{key}": name for key, name in on_pod.items()}
    waits = unplaced("x", message, asking(1, 1000), annotations=odd)
    runs = vgpu_pod("y", on="a", annotations=odd)
    objects = [event(waits, reason, message) for reason in ("FilteringFailed", "BindingFailed")]
    seen = snapshot(*hami(own, version=version), waits, runs, *objects)
    problems = diagnose(seen).problems
    chains = hami_chains(seen, (pod for pod in seen.pods if pod.meta.namespace == "team"), problems)
    texts = [
        text for problem in problems for text in (*problem.found.evidence, *problem.found.remedy, problem.found.subject)
    ]
    assert all(name.isprintable() for name in (*texts, *(step.seen for chain in chains for step in chain.steps)))


_FLAGS = st.lists(
    st.one_of(
        ANY_TEXT, st.builds("--{}={}".format, st.sampled_from(("gpu-scheduler-policy", "node-lock-timeout")), TEXT)
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(flags=_FLAGS, expires=TEXT, bundle=TEXT, rule=TEXT)
def test_any_installation_is_printable(flags: list[str], expires: str, bundle: str, rule: str) -> None:
    webhook: Object = {"ca": bundle, "matchConditions": [{"name": rule, "expression": rule}], "timeoutSeconds": rule}
    webhook["objectSelector"] = {"matchLabels": {rule: rule}}
    webhook["namespaceSelector"] = {"matchExpressions": [{"key": rule}]}
    state = hami(hami_node("a"), webhook=webhook)
    objects = [
        with_flags(entry, *flags, HAMI_NODELOCK_EXPIRE=expires) if entry["kind"] == "Deployment" else entry
        for entry in state
    ]
    (table,) = installation_tables(snapshot(*objects))
    texts = [text for part in table.parts for text in (part.what, part.status, part.version, part.detail)]
    assert all(name.isprintable() for name in texts)
