"""Child process for one query of a gRPC socket of the node, with one line of JSON as output.

Only this process imports gRPC, which would use tens of MiB of memory in its caller. It calls only the methods below,
none of which changes anything.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import Any

from msgspec import Struct, field

_LONGEST_MESSAGE = 200

_Fields = tuple[tuple[str, int, str], ...]
"""Fields of a message that are read: name, number and type. `repeated` as in a .proto file."""

_ANNOTATION: _Fields = (("key", 1, "string"), ("value", 2, "string"))  # encoding of a map
ANNOTATIONS = frozenset({"hami.io/vgpu-devices-allocated", "gpu-healthcheck.aws-samples.io/waiting"})
"""Annotations of pods that are in the answer, up to a length. The others can be large, and concern nobody here."""
_LONGEST_ANNOTATION = 4096

CRI: dict[str, _Fields] = {
    "VersionRequest": (),
    "VersionResponse": (("runtime_name", 2, "string"), ("runtime_version", 3, "string")),
    "StatusRequest": (("verbose", 1, "bool"),),
    "StatusResponse": (
        ("status", 1, "RuntimeStatus"),
        ("info", 2, "repeated InfoEntry"),
        ("runtime_handlers", 3, "repeated RuntimeHandler"),
    ),
    "RuntimeStatus": (("conditions", 1, "repeated RuntimeCondition"),),
    "RuntimeCondition": (
        ("type", 1, "string"),
        ("status", 2, "bool"),
        ("reason", 3, "string"),
        ("message", 4, "string"),
    ),
    "InfoEntry": (("key", 1, "string"), ("value", 2, "string")),  # encoding of a map
    "RuntimeHandler": (("name", 1, "string"),),
    "ListPodSandboxRequest": (),
    "ListPodSandboxResponse": (("items", 1, "repeated PodSandbox"),),
    "PodSandbox": (
        ("metadata", 2, "PodSandboxMetadata"),
        ("state", 3, "PodSandboxState"),
        ("created_at", 4, "int64"),
        ("annotations", 6, "repeated Annotation"),
    ),
    "PodSandboxMetadata": (("name", 1, "string"), ("uid", 2, "string"), ("namespace", 3, "string")),
    "Annotation": _ANNOTATION,
}
"""k8s.io/cri-api, pkg/apis/runtime/v1/api.proto, limited to the used fields."""

POD_RESOURCES: dict[str, _Fields] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, "repeated PodResources"),),
    "PodResources": (
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("containers", 3, "repeated ContainerResources"),
    ),
    "ContainerResources": (
        ("name", 1, "string"),
        ("devices", 2, "repeated ContainerDevices"),
        ("dynamic_resources", 5, "repeated DynamicResource"),
    ),
    "ContainerDevices": (("resource_name", 1, "string"), ("device_ids", 2, "repeated string")),
    "DynamicResource": (
        ("claim_name", 2, "string"),
        ("claim_namespace", 3, "string"),
        ("claim_resources", 4, "repeated ClaimResource"),
    ),
    "ClaimResource": (("driver_name", 2, "string"), ("pool_name", 3, "string"), ("device_name", 4, "string")),
}
"""k8s.io/kubelet, pkg/apis/podresources/v1/api.proto, limited to the used fields."""


PODS: dict[str, _Fields] = {
    "ListPodsRequest": (),
    "ListPodsResponse": (("pods", 1, "repeated Pod"),),  # bytes of a Pod, which is the encoding of the message itself
    "Pod": (("metadata", 1, "ObjectMeta"), ("spec", 2, "PodSpec"), ("status", 3, "PodStatus")),
    "ObjectMeta": (
        *(("name", 1, "string"), ("namespace", 3, "string"), ("uid", 5, "string")),
        ("annotations", 12, "repeated Annotation"),
    ),
    "Annotation": _ANNOTATION,
    "PodStatus": (("phase", 1, "string"), ("startTime", 7, "Time")),
    "Time": (("seconds", 1, "int64"),),
    "PodSpec": (("tolerations", 22, "repeated Toleration"),),
    "Toleration": (("key", 1, "string"), ("operator", 2, "string"), ("value", 3, "string"), ("effect", 4, "string")),
}
"""k8s.io/kubelet, pkg/apis/pods/v1alpha1/api.proto, with the Pod of k8s.io/api, limited to the used fields.

Kubernetes 1.36 serves it behind the feature gate PodsAPI, 1.37 by default.
"""


class Call(Struct, frozen=True):
    """One call of a method. `values` are the fields of the request."""

    method: str
    request: str
    answer: str
    values: dict[str, Any] = field(default_factory=dict)


class Question(Struct, frozen=True):
    """A group of calls, with the package and the messages that they use."""

    package: str
    messages: dict[str, _Fields]
    calls: tuple[Call, ...]


QUESTIONS = {
    "container-runtime": Question(
        "runtime.v1",
        CRI,
        (
            Call("RuntimeService/Version", "VersionRequest", "VersionResponse"),
            Call("RuntimeService/Status", "StatusRequest", "StatusResponse", {"verbose": True}),
        ),
    ),
    "pod-sandboxes": Question(
        "runtime.v1",
        CRI,
        (Call("RuntimeService/ListPodSandbox", "ListPodSandboxRequest", "ListPodSandboxResponse"),),
    ),
    "pods": Question("v1alpha1", PODS, (Call("Pods/ListPods", "ListPodsRequest", "ListPodsResponse"),)),
    "pod-resources": Question(
        "v1", POD_RESOURCES, (Call("PodResourcesLister/List", "ListPodResourcesRequest", "ListPodResourcesResponse"),)
    ),
}


def ask(question: Question, path: str) -> dict[str, Any]:
    """Return `answers` with one answer for each call, or `error` with the reason for no answers."""
    try:
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.connect(path)  # without gRPC: gives the kernel's error if no server listens
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return _call(question, path)


def _call(question: Question, path: str) -> dict[str, Any]:
    from urllib.parse import quote  # noqa: PLC0415 - like gRPC below: only if a server listens

    import grpc  # noqa: PLC0415
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    messages = message_classes(question)
    answers = []
    try:
        # By default gRPC accepts no answer of more than 4 MiB.
        with grpc.insecure_channel(f"unix:{quote(path)}") as channel:
            for call in question.calls:
                request, answer = messages[call.request], messages[call.answer]
                method = channel.unary_unary(
                    f"/{question.package}.{call.method}", request.SerializeToString, answer.FromString
                )
                answers.append(
                    without_others(MessageToDict(method(request(**call.values)), preserving_proto_field_name=True))
                )
    except grpc.RpcError as error:
        return {"error": f"{error.code().name}: {error.details()}"[:_LONGEST_MESSAGE]}
    return {"answers": answers}


def without_others(answer: Any) -> Any:
    """Return the answer with only those annotations that are used."""
    if isinstance(answer, list):
        return [without_others(entry) for entry in answer]
    if not isinstance(answer, dict):
        return answer
    return {key: _used(value) if key == "annotations" else without_others(value) for key, value in answer.items()}


def _used(annotations: list[dict[str, str]]) -> list[dict[str, str]]:
    return [
        entry
        for entry in annotations
        if entry.get("key") in ANNOTATIONS and len(entry.get("value", "")) <= _LONGEST_ANNOTATION
    ]


def message_classes(question: Question) -> dict[str, Any]:
    """Build the classes of these messages. Generated classes would need a compiler of a certain version."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    package = question.package
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in question.messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, declared_type in fields:
            proto_field = message.field.add(name=field_name, number=number)
            repeated, _, kind = declared_type.rpartition(" ")
            proto_field.label = proto_field.LABEL_REPEATED if repeated else proto_field.LABEL_OPTIONAL
            if kind in question.messages:
                proto_field.type, proto_field.type_name = proto_field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                numbers = {"PodSandboxState": proto_field.TYPE_INT32, "int64": proto_field.TYPE_INT64}
                proto_field.type = ({"string": proto_field.TYPE_STRING, "bool": proto_field.TYPE_BOOL} | numbers)[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in question.messages}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


def main() -> None:
    """`grpc_child QUESTION SOCKET SECONDS`: query, print the answer, and exit."""
    name, path, longest_seconds = sys.argv[1:]
    signal.setitimer(signal.ITIMER_REAL, float(longest_seconds))  # even if the parent was killed
    print(json.dumps(ask(QUESTIONS[name], path)))
