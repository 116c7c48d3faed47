"""Kernel lines about the PCI function of a GPU, or a port above it: check cycles then follow at once.

Such a line is no finding: a GPU can recover. But the driver does not report each lost GPU with an Xid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import structlog

from agent.state.agent_state import AgentState
from healthcheck.checks.driver import being_changed
from healthcheck.probes.kernel_log import Record, is_packet_filters
from healthcheck.probes.pci import FUNCTIONS
from healthcheck.text.printable import printable

log = structlog.get_logger()

BEGINS = ("pcieport ", "pciehp ", "nvidia ", "pci ")
"""Drivers of a port and of a GPU in the kernel's prefix; `pci` for a function without a driver."""
WATCH_SECONDS = 30.0
"""Time of the three repeats after the last line. It also bounds a flood: cycles of a watch are 10 s apart."""
_LONGEST_LINE = 200

# Linux, drivers/pci: hotplug/pciehp_ctrl.c and pciehp_hpc.c (before 4.19 the prefix has the port's service, `:pcie004`,
# and before 4.11 the slot is last), pcie/aer.c (from 6.4 on "Uncorrectable"; `aer_uncor_severity` if the firmware reads
# the errors), pcie/dpc.c, and pci.c (pci_power_up, pci_set_low_power_state, pci_dev_wait).
_LINE = re.compile(
    r"(?:pcieport|pciehp|nvidia|pci) (?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::pcie\d{2,3})?: "
    r"(?:(?:pciehp: )?[Ss]lot\(\S{1,64}\): (?:Link Down|Card not present|Power fault)|Card not present on Slot"
    r"|AER: (?:Multiple )?Uncorrect(?:ed|able) \(|(?:AER: )?PCIe Bus Error: severity=Uncorrect"
    r"|(?:AER: )?aer_uncor_severity: |AER: (?:device recovery failed|subordinate device reset failed|can't recover)"
    r"|AER: \w{4,10} Port link has been reset|DPC: (?:containment event|unmasked uncorrectable error)"
    r"|(?:Unable to|can't|[Rr]efused to) change power state|(?:not )?ready \d{1,7}ms after )"
)


class GpuWatch:
    """Watch of the GPUs' PCI functions. Only the thread `judge` calls it."""

    def __init__(self, state: AgentState, start_cycle_soon: Callable[[], None]) -> None:
        self._state = state
        self._start_cycle_soon = start_cycle_soon

    def read(self, records: Iterable[Record]) -> None:
        """Start a check cycle if a record concerns a GPU. If repeats follow already, only prolong their time.

        A change of the driver or a reset causes such lines itself.
        """
        named = [(found["address"], record) for record in records if (found := _LINE.match(record.text))]
        if not named or self._is_being_changed():
            return
        watched = self._addresses()
        record = next(
            (candidate for address, candidate in named if address in watched and not is_packet_filters(candidate.text)),
            None,
        )
        if record is None or not self._state.watch_gpus(WATCH_SECONDS):
            return
        log.info("the kernel reports a GPU's PCI function", text=printable(record.text, _LONGEST_LINE))
        if not self._state.memory.suspects:  # their next repeat is due within 10 s, and no earlier
            self._start_cycle_soon()

    def _is_being_changed(self) -> bool:
        node = self._state.node
        return self._state.is_reset() or (node is not None and being_changed(node.labels) != "")

    def _addresses(self) -> set[str]:
        """Return the addresses of the GPUs and of the ports above them, by the last check cycle."""
        last = self._state.last_evidence
        functions = last[FUNCTIONS] if last is not None and last.unread(FUNCTIONS) is None else ()
        return {
            address
            for function in functions
            if function.is_gpu_here
            for address in (function.address, *function.bridges)
        }
