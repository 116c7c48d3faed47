"""Check of HAMi: containers get its library, the kubelet has its plugin socket, and it cleans up.

HAMi is judged only while its processes run, because its files stay on the host after its removal. The lock file
/tmp/vgpulock/lock is not judged: older releases remove a lock that is never released, and later releases keep the file
permanently (HAMi-core, src/utils.c).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Grace,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    counted,
)
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.hami import HAMI, LIBRARY, MIG_LOCK, PRELOAD, File, Hami, Plugin

_GRACE = Grace(120.0, "HAMi's pod was started on the node")
_LONGEST_APPLY = 600.0
"""Longest time of `nvidia-mig-parted apply`, in seconds. It takes some seconds for each GPU."""
_MOST_SHOWN = 4
_SOCKET = "nvidia-"
"""Prefix of the plugin's socket name, before the resource's name (`getPluginSocketPath`)."""
_KUBELETS_SOCKET = "kubelet.sock"
_RESTART = "delete the pod of its device plugin on the node (`kubectl -n NAMESPACE delete pod`)"

NOT_INSTALLED = Reason(
    "HamiLibraryNotInstalled",
    Severity.MONITOR,
    "HAMi's library is missing: it is not at the path that HAMi's device plugin mounts. New containers run without "
    "their limits.",
    f"Remove a folder at its path, then {_RESTART}: the plugin copies the file when it starts. If it stays missing, "
    "set the chart's `devicePlugin.libPath` to the path in `global.gpuHookPath` followed by `/vgpu`.",
    flickers=True,
    source="HAMi, plugin/server.go and vgpu-init.sh",
    grace=_GRACE,
)
PRELOAD_WRONG = Reason(
    "HamiPreloadWrong",
    Severity.MONITOR,
    "HAMi's limits do not apply in new containers: its ld.so.preload is missing, or names another path than that of "
    "its library in containers. The limits are those of memory and cores.",
    f"Remove a folder at its path, then {_RESTART}. Older releases ignore `global.gpuHookPath` and write "
    "/usr/local/vgpu into it: correct the file on the node, or upgrade.",
    flickers=True,
    source="HAMi issues 1713 and 2017",
    grace=_GRACE,
)
NOT_SERVING = Reason(
    "HamiPluginNotServing",
    Severity.MONITOR,
    "HAMi's device plugin does not serve: HAMi runs on the node, but the plugin has no socket for the kubelet. No "
    "pod gets a share of a GPU.",
    f"Read its log, then {_RESTART}.",
    flickers=True,
    source="HAMi, plugin/server.go; the kubelet's device plugin API",
    grace=_GRACE,
)
LEFTOVERS = Reason(
    "HamiLeftovers",
    Severity.MONITOR,
    "HAMi's monitor does not clean up: the folders of containers whose pods are gone accumulate on the disk.",
    "Read the log of `vgpu-monitor` in HAMi's pod on the node; the chart's `devicePlugin.monitor.ctrPath` must be the "
    "folder in the detail.",
    flickers=True,
    threshold="HAMi has run for twice its own delay (`HAMI_RESYNC_INTERVAL`, 5 min by default)",
    source="HAMi, pkg/monitor/nvidia/cudevshr.go",
)
LOCKED = Reason(
    "HamiMigLockStale",
    Severity.MONITOR,
    "HAMi's monitor is blocked by an old lock: HAMi did not remove its lock for changes of MIG instances.",
    f"Make sure that no `nvidia-mig-parted` runs on the node, then remove {MIG_LOCK} there.",
    flickers=True,
    threshold=f"{_LONGEST_APPLY:g} s after its creation",
    source="HAMi, plugin/lock.go and cmd/vGPUmonitor",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    hami = evidence[HAMI]
    if not hami.runs:
        yield NotConfigured("HAMi does not run on this node")
    elif not any(function.is_gpu and function.driver == "nvidia" for function in evidence[pci.FUNCTIONS]):
        yield NotConfigured("no GPU is bound to the NVIDIA driver")
    else:
        if hami.up_seconds >= _GRACE.seconds:
            yield from _judge_plugin(hami)
        else:
            early = (NOT_INSTALLED.name, PRELOAD_WRONG.name, NOT_SERVING.name)
            yield TooEarly(f"judged {_GRACE.seconds:g} s after {_GRACE.since}", reasons=early)
        yield from _judge_cleanup(hami)
        yield Observation(_summary(hami), "its library, its ld.so.preload and a socket of its plugin")


def _judge_plugin(hami: Hami) -> Iterator[Judgement]:
    if hami.plugin is None:
        yield TooEarly("its device plugin does not run", reasons=(NOT_INSTALLED.name, PRELOAD_WRONG.name))
    else:
        if missing := _missing_libraries(hami.plugin):
            yield NOT_INSTALLED.on("node", "; ".join(missing))
        if wrong := _wrong_preload(hami.plugin):
            yield PRELOAD_WRONG.on("node", wrong)
    if hami.listening is None:
        yield TooEarly("its sockets are not visible", reasons=(NOT_SERVING.name,))
    elif why := _not_serving(hami, hami.listening):
        yield NOT_SERVING.on("node", why)


def _missing_libraries(plugin: Plugin) -> list[str]:
    """Return the libraries that HAMi's image contains and the host lacks.

    If the image cannot be read, one library of any release is enough.
    """
    on_host = {library.name: library for library in plugin.libraries}
    usable = [library.name for library in plugin.libraries if library.plain and library.size]
    missing = [name for name in plugin.brings or (() if usable else (LIBRARY,)) if name not in usable]
    shown = [_file_state(f"{plugin.folder}/{name}", on_host.get(name)) for name in missing[:_MOST_SHOWN]]
    return shown + ([f"and {len(missing) - _MOST_SHOWN} more"] if len(missing) > _MOST_SHOWN else [])


def _file_state(path: str, file: File | None) -> str:
    if file is None:
        return f"no {path}"
    return f"{path} is {'empty' if file.plain else 'not a regular file'}"


def _wrong_preload(plugin: Plugin) -> str:
    """Return why ld.so.preload does not load the library in containers; '' if it does."""
    path, library = f"{plugin.folder}/{PRELOAD}", f"{plugin.folder}/{LIBRARY}"
    if plugin.preload is None or not plugin.preload.plain or not plugin.preload.size:
        return _file_state(path, plugin.preload)
    if library in map(posixpath.normpath, plugin.preloads):
        return ""
    return f"{path} names {', '.join(plugin.preloads[:_MOST_SHOWN]) or 'nothing'}, but containers have {library}"


def _not_serving(hami: Hami, listening: Sequence[str]) -> str:
    """Return why no pod gets a share of a GPU; '' if a plugin listens and the kubelet has its socket."""
    own = [name for name in listening if name.startswith(_SOCKET)]
    if not own:
        # Without HAMi's plugin, the monitor may be Volcano's, which has a plugin of another name.
        return "" if hami.plugin is None and listening else f"nothing in its pod listens on {_SOCKET}*.sock"
    in_folder = hami.plugin.sockets if hami.plugin is not None else None
    if in_folder is None or _KUBELETS_SOCKET not in in_folder or set(own) & set(in_folder):
        return ""
    return (
        f"its plugin listens on {own[0]}, which is no longer in the kubelet's folder: the kubelet was started after it"
    )


def _judge_cleanup(hami: Hami) -> Iterator[Judgement]:
    stale, lock_seconds = hami.leftovers, hami.mig_lock_seconds
    if hami.up_seconds < 2 * hami.resync_seconds:
        wait = f"HAMi has run for {hami.up_seconds:.0f} s, and removes folders after {hami.resync_seconds:.0f} s"
        yield TooEarly(wait, reasons=(LEFTOVERS.name,))
    elif stale is None:
        yield TooEarly("the kubelet's folder of pods is not known", reasons=(LEFTOVERS.name,))
    elif stale.names:
        shown = ", ".join(stale.names[:_MOST_SHOWN]) + (", …" if len(stale.names) > _MOST_SHOWN else "")
        yield LEFTOVERS.on("node", f"{counted(len(stale.names), 'folder')} in {stale.folder}: {shown}")
    if lock_seconds is not None and lock_seconds >= _LONGEST_APPLY:
        yield LOCKED.on("node", f"{MIG_LOCK} was created {lock_seconds / 60:.0f} min ago")


def _summary(hami: Hami) -> str:
    plugin, listening = "its device plugin does not run", ", ".join((hami.listening or ())[:_MOST_SHOWN])
    if hami.plugin is not None:
        libraries = ", ".join(library.name for library in hami.plugin.libraries[:_MOST_SHOWN])
        plugin = f"{hami.plugin.folder}: {libraries or 'no library'}"
    return f"{plugin}; {f'listens on {listening}' if listening else 'no socket of a plugin'}"


CHECK = Check(
    "hami", "8-hami", (HAMI, pci.FUNCTIONS), judge, (NOT_INSTALLED, PRELOAD_WRONG, NOT_SERVING, LEFTOVERS, LOCKED)
)
