"""NVIDIA's device plugin in small, on the kubelet's real device-plugin API: `python -m sim.real_device_plugin ROOT`.

It runs in a pod on a real node. ROOT is the folder of the simulated node's hardware. As with NVIDIA's plugin
(k8s-device-plugin, internal/rm/health.go and issue 1014), an Xid of a GPU makes it `Unhealthy`, and only a new start of
the plugin makes it healthy again. The plugin registers for Xid events when it starts and never sees earlier ones. Its
device files stay closed, because this kernel has no driver for them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from gpu_healthcheck.healthcheck.host.grpc_child import Question, message_classes

RESOURCE = "nvidia.com/gpu"
XIDS = "device-plugin/xids"
"""File below ROOT with the driver's Xid events, one `UUID CODE` per line."""
SOCKETS = Path("/var/lib/kubelet/device-plugins")
_SOCKET = "nvidia-gpu.sock"
_OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that applications cause; the plugin ignores them."""
_POLL_SECONDS = 0.2
_SERVICE, _REGISTER = "v1beta1.DevicePlugin", "/v1beta1.Registration/Register"
_API = Question(
    "v1beta1",
    {
        "Empty": (),
        "RegisterRequest": (("version", 1, "string"), ("endpoint", 2, "string"), ("resource_name", 3, "string")),
        "DevicePluginOptions": (("pre_start_required", 1, "bool"),),
        "Device": (("ID", 1, "string"), ("health", 2, "string")),
        "ListAndWatchResponse": (("devices", 1, "repeated Device"),),
        "ContainerAllocateRequest": (("devices_ids", 1, "repeated string"),),
        "AllocateRequest": (("container_requests", 1, "repeated ContainerAllocateRequest"),),
        "Variable": (("key", 1, "string"), ("value", 2, "string")),
        "ContainerAllocateResponse": (("envs", 1, "repeated Variable"),),
        "AllocateResponse": (("container_responses", 1, "repeated ContainerAllocateResponse"),),
    },
    (),
)
"""k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto, limited to the used fields."""


class Plugin(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The service that the kubelet calls, and the state of the GPUs."""

    def __init__(self, root: Path) -> None:
        self._messages = message_classes(_API)
        folders = sorted((root / "nvml").glob("gpu[0-9]*"), key=lambda folder: int(folder.name.removeprefix("gpu")))
        self._health = {(folder / "uuid").read_text().strip(): "Healthy" for folder in folders}
        self._xids = root / XIDS
        self._read = len(self._lines())
        self._changed = threading.Condition()

    def service(self, details: Any) -> Any:
        kinds: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "GetDevicePluginOptions": ("Empty", lambda _: self._messages["DevicePluginOptions"]()),
            "Allocate": ("AllocateRequest", self._allocate),
        }
        service, _, method = details.method.lstrip("/").partition("/")
        if service != _SERVICE:
            return None
        if method == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(
                lambda _request, _context: self._list(), response_serializer=_serialized
            )
        if method not in kinds:
            return None
        request, answer = kinds[method]
        return grpc.unary_unary_rpc_method_handler(
            lambda asked, _context: answer(asked),
            request_deserializer=self._messages[request].FromString,
            response_serializer=_serialized,
        )

    def register(self) -> None:
        request = self._messages["RegisterRequest"](version="v1beta1", endpoint=_SOCKET, resource_name=RESOURCE)
        with grpc.insecure_channel(f"unix:{SOCKETS / 'kubelet.sock'}") as channel:
            channel.unary_unary(_REGISTER, _serialized, self._messages["Empty"].FromString)(request)

    def watch(self, stopping: threading.Event) -> None:
        """Mark the GPUs of new Xids as unhealthy, for ever."""
        while not stopping.wait(_POLL_SECONDS):
            lines = self._lines()
            fresh, self._read = lines[self._read :], len(lines)
            for uuid, code in (line.split() for line in fresh):
                if int(code) not in _OF_APPLICATIONS:
                    print(f"XidCriticalError: Xid={code} on Device={uuid}; marking device as unhealthy.", flush=True)
                    with self._changed:
                        self._health[uuid] = "Unhealthy"
                        self._changed.notify_all()

    def _lines(self) -> list[str]:
        return self._xids.read_text().splitlines() if self._xids.exists() else []

    def _list(self) -> Iterator[Any]:
        device = self._messages["Device"]
        with self._changed:
            while True:
                devices = [device(ID=uuid, health=health) for uuid, health in self._health.items()]
                yield self._messages["ListAndWatchResponse"](devices=devices)
                self._changed.wait()

    def _allocate(self, request: Any) -> Any:
        variable, response = self._messages["Variable"], self._messages["ContainerAllocateResponse"]
        names = [",".join(asked.devices_ids) for asked in request.container_requests]
        responses = [response(envs=[variable(key="NVIDIA_VISIBLE_DEVICES", value=name)]) for name in names]
        return self._messages["AllocateResponse"](container_responses=responses)


def _serialized(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    plugin = Plugin(Path(sys.argv[1]))
    (SOCKETS / _SOCKET).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4), (plugin,))
    server.add_insecure_port(f"unix:{SOCKETS / _SOCKET}")
    server.start()
    plugin.register()
    plugin.watch(stopping)
    server.stop(None)
    os._exit(0)  # the stream to the kubelet waits in a thread


if __name__ == "__main__":
    main()
