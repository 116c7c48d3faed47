"""Lines of NVIDIA's modules and of EFA that report an error, for the lines that no rule judges."""

from __future__ import annotations

import re

from gpu_healthcheck.healthcheck.probes import kernel_log

BEGINS = ("NVRM", "nvidia", "[drm:nv_drm_", "[nvidia-vgpu-vfio] ", "efa ", "infiniband ")
"""Beginnings of the lines of NVIDIA's modules and of EFA, and of the kernel's lines about a device bound to one."""
_OWN = re.compile(
    r"NVRM:? (?!Xid \()|nvidia-(?:modeset|uvm|nvlink|drm|nvswitch\d{0,4}): |nvidia: |\[nvidia-vgpu-vfio\] "
    r"|nvidia-(?:fs:|peermem )\w{8,64}:\d{1,5} "
    # EFA's commands time out, or the device does not start (amzn-drivers, efa_com.c).
    r"|(?:efa [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|infiniband (?:efa_|rdmap)\w{1,16}): (?:Wait for completion "
    r"\(polling\) timeout|The device didn't send any completion|Admin queue is closed|Reset indication didn't turn"
    r"|Device isn't ready)"
    r"|nvidia [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: (?!(?:AER: )?  )|\[drm:nv_drm_\w{2,48} \[nvidia_drm\]\] "
)
"""An AER line that is indented continues the line with the severity (Linux, drivers/pci/pcie/aer.c)."""
_OF_A_PROCESS = re.compile(
    r"(?!NVRM:? (?:GPU\d{1,3} )?\w{10}).{1,15}?(?:\[\d{1,10}\]| ?\(\d{1,10}\)|: page allocation failure"
    r"|: attempt to access| invoked oom-killer)"
)
"""Beginning of a kernel record about a process, whose name of up to 15 bytes a user chooses."""
_WORDS = (
    *("error", "err_", "fail", "fatal", "timed out", "timeout", "unable", "cannot", "can't", "could not"),
    *("invalid", "lost", "stuck", "locked", "hung", "corrupt", "mismatch", "assert", "not respond", "inaccessible"),
    *("unexpected", "refuse", "reject", "uncorrect", "halted", "panic", "abort", "incompatible", "no answer"),
    *("coredump", "didn't send any", "didn't turn", "isn't ready", "queue is closed"),
)
_HARMLESS = (
    # Status codes with which the driver rejects a request of a program (nvstatuscodes.h).
    *("NV_ERR_NOT_SUPPORTED", "tatus 0x00000056", "tatus=0x00000056", "NV_ERR_NO_MEMORY", "NV_ERR_INSUFFICIENT_"),
    *("NV_ERR_IN_USE", "NV_ERR_STATE_IN_USE", "NV_ERR_OBJECT_NOT_FOUND", "NV_ERR_BUSY_RETRY"),
    *("NV_ERR_FEATURE_NOT_ENABLED", "can't alloc VA space for mapping", "nvidia_p2p_get_pages"),
    # Driver before R560, harmless (Mellanox/nv_peer_memory #120).
    "nv_get_p2p_free_callback",
    # Notes about the modules, the console and displays, which healthy nodes have, too.
    *("module verification failed", "module license", "taint", "VGA console", "text-mode", "vesafb"),
    *("corruption and stability", "EDID", ": WARNING: ", "Chipset Setup Function Error", "falling back to", "vgaarb"),
    # A display server needs a screen (drm_client_modeset.c), and LTR the configuration space of a known chipset
    # (chipset_pcie.c). A corrected PCIe error lost no data: the replay counter judges its rate.
    *("Cannot find any crtc or sizes", "clCheckUpstreamLtrSupport", "PCIe Bus Error: severity=Correct"),
)
"""Parts of lines that have a word of an error and report none."""
_AT_UNLOAD = ("Check failed", "NV_ERR_INVALID_STATE")
"""Check of an object that is already freed while a program ends or the driver is unloaded."""


def reports_error(text: str) -> bool:
    """Whether a line is the driver's own and reports an error that healthy nodes do not have."""
    # The substrings come first: most lines have none of the words.
    if not text.startswith(BEGINS) or not any(map(text.lower().__contains__, _WORDS)):
        return False
    if any(map(text.__contains__, _HARMLESS)) or all(map(text.__contains__, _AT_UNLOAD)):
        return False
    return _OWN.match(text) is not None and not (_OF_A_PROCESS.match(text) or kernel_log.is_packet_filters(text))
