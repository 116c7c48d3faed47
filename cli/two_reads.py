"""Two reads of this machine's GPUs, for `gpu-healthcheck check siblings --now`."""

from __future__ import annotations

from time import sleep

from msgspec.structs import replace

from healthcheck.checks import gpu_siblings
from healthcheck.checks.examine import read_probes
from healthcheck.host.streams import say
from healthcheck.model import Host
from healthcheck.probes.gpu_pods import GpuPods, read_pods_of
from healthcheck.probes.nvml.gpus import SUCCESS, DriverReading, Gpus


def after_first_read(host: Host, seconds: float) -> Host:
    """Read the GPUs and their pods, wait, and return the host whose next read ends the measurement."""
    readings: list[DriverReading] = []
    pods: list[GpuPods] = []

    def ask_driver() -> DriverReading:
        readings.append(host.ask_driver())  # type: ignore[misc]
        return readings[-1]

    def ask_gpu_pods() -> tuple[GpuPods, ...]:
        answer, at = readings[-1].answer, readings[-1].read_at
        if isinstance(answer, Gpus):
            pods.append(read_pods_of(host, at, [gpu for gpu in answer.gpus if gpu.error == SUCCESS]))
        return tuple(pods)

    measured = replace(host, ask_driver=ask_driver, ask_gpu_pods=ask_gpu_pods)
    read_probes(measured, (gpu_siblings.CHECK,))
    say(f"the GPUs were read once; the second read is in {seconds:g} s, Ctrl-C ends it")
    sleep(seconds)
    return measured
