"""Kernel lines about a GPU's PCI function start a check cycle; all other lines start none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.agent.events.record_judge import BEGINS, WATCH_SECONDS, GpuWatch
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.checks.gpu_count import CHECK, LOST
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Evidence, Now, Outcome
from gpu_healthcheck.healthcheck.node.state import RUN, NodeState
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from gpu_healthcheck.healthcheck.text.moments import timestamp
from tests.checks.evidence import gpu_function

WALL = datetime(2026, 11, 27, 1, 2, 3, tzinfo=UTC)
ROOT_PORT, SWITCH, PORT, GPU = "0000:40:01.1", "0000:41:00.0", "0000:42:04.0", "0000:43:00.0"
OTHER_PORT, OTHER_GPU, PASSED_ON = "0000:80:01.1", "0000:83:00.0", "0000:c1:00.0"
INVENTORY = (
    gpu_function(GPU, switch=PORT, bridges=(ROOT_PORT, SWITCH, PORT)),
    gpu_function(OTHER_GPU, driver="", switch=OTHER_PORT, bridges=(OTHER_PORT,)),
    gpu_function(PASSED_ON, driver="vfio-pci", bridges=("0000:c0:01.1",)),
    PciFunction("0000:44:00.0", 0x1D0F, 0xEFA2, 0x020000, "efa"),
)

CONCERN_A_GPU = [
    f"pcieport {ROOT_PORT}: pciehp: Slot(12): Link Down",
    f"pcieport {PORT}: pciehp: Slot(0-2): Card not present",
    f"pcieport {PORT}: pciehp: Slot(12): Link Down/Up ignored (recovered by DPC)",
    f"pcieport {PORT}: pciehp: Slot(12): Link Down/Up ignored",
    f"pcieport {PORT}: pciehp: Slot(12): Power fault",
    f"pciehp {ROOT_PORT}:pcie004: Slot(12): Card not present",
    f"pciehp {ROOT_PORT}:pcie04: Card not present on Slot(12)",
    f"pciehp {ROOT_PORT}:pcie04: slot(12): Link Down event",
    f"pcieport {ROOT_PORT}: AER: Uncorrected (Fatal) error received: {GPU}",
    f"pcieport {ROOT_PORT}: AER: Uncorrected (Non-Fatal) error received: id=4300",
    f"pcieport {ROOT_PORT}: AER: Multiple Uncorrectable (Fatal) error message received from {GPU} (no details found)",
    f"pcieport {SWITCH}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    f"nvidia {GPU}: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
    f"nvidia {GPU}: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Unregistered Agent ID)",
    f"nvidia {GPU}: AER: aer_uncor_severity: 0x00463030",
    f"nvidia {GPU}: AER: can't recover (no error_detected callback)",
    f"pcieport {PORT}: AER: device recovery failed",
    f"pcieport {PORT}: AER: subordinate device reset failed",
    f"pcieport {ROOT_PORT}: AER: Root Port link has been reset (-25)",
    f"pcieport {PORT}: AER: Downstream Port link has been reset (0)",
    f"pcieport {PORT}: DPC: containment event, status:0x1f01 source:0x0000",
    f"pcieport {PORT}: DPC: containment event, status:0x200d, ERR_FATAL received from {GPU}",
    f"pcieport {PORT}: DPC: unmasked uncorrectable error detected",
    f"nvidia {GPU}: Unable to change power state from D3cold to D0, device inaccessible",
    f"nvidia {GPU}: can't change power state from D3cold to D0 (config space inaccessible)",
    f"nvidia {GPU}: Refused to change power state, currently in D3",
    f"nvidia {GPU}: not ready 1023ms after bus reset; waiting",
    f"nvidia {GPU}: not ready 65535ms after bus reset; giving up",
    f"nvidia {GPU}: ready 2047ms after bus reset",
    f"pci {OTHER_GPU}: Unable to change power state from D3cold to D0, device inaccessible",
    f"pcieport {OTHER_PORT}: pciehp: Slot(3): Link Down",
]
CONCERN_NO_GPU = [
    "pcieport 0000:40:01.2: pciehp: Slot(13): Link Down",  # another function of the same port device
    "pcieport 0000:42:05.0: pciehp: Slot(7): Card not present",  # the next port of the GPU's switch
    "pcieport 10000:40:01.1: pciehp: Slot(12): Link Down",  # another domain
    f"pcieport {ROOT_PORT}: pciehp: Slot(12): Link Up",
    f"pcieport {ROOT_PORT}: pciehp: Slot(12): Card present",
    f"pcieport {ROOT_PORT}: pciehp: Slot #12 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug- Surprise- LLActRep+",
    f"pcieport {ROOT_PORT}: AER: Corrected error received: {GPU}",
    f"pcieport {ROOT_PORT}: AER: Correctable error message received from {GPU}",
    f"nvidia {GPU}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    f"nvidia {GPU}: AER: aer_status: 0x00001000, aer_mask: 0x00002000",
    f"nvidia {GPU}: enabling device (0000 -> 0002)",
    f"pci {OTHER_GPU}: BAR 1 [mem 0x0-0xfff]: assigned",
    "nvme 0000:43:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    "pcieport 0000:c0:01.1: pciehp: Slot(9): Link Down",  # above a GPU of a virtual machine
    f"vfio-pci {PASSED_ON}: not ready 1023ms after bus reset; waiting",
    f"the user said: pcieport {ROOT_PORT}: pciehp: Slot(12): Link Down",
    f"pcieport {ROOT_PORT}: pciehp: Slot(12): Link Down IN=eth0 OUT= SRC=10.0.0.1 DST=10.0.0.2 LEN=40",
    "pcieport 0000:4[123]: segfault at 0 ip 0 sp 0 error 4",
    f"NVRM: GPU {GPU}: RmInitAdapter failed! (0x26:0xffff:1290)",
]


class Watch:
    """The watch of a simulated node, with a simulated clock and the started cycles."""

    def __init__(self, inventory: tuple[PciFunction, ...] = INVENTORY) -> None:
        self.time = 1000.0
        self.started: list[float] = []
        self.state = AgentState("n", Memory(boot_id="b"), lambda: Now(WALL + timedelta(seconds=self.time), self.time))
        self.state.store_evidence(Evidence({FUNCTIONS: inventory}, at=self.time))
        self._watch = GpuWatch(self.state, lambda: self.started.append(self.time))

    def read(self, *lines: str) -> None:
        self._watch.read([Record(seq, self.time, 0, line) for seq, line in enumerate(lines)])


@pytest.mark.parametrize("line", CONCERN_A_GPU)
def test_a_line_about_a_gpu_or_a_port_above_it_starts_a_cycle(line: str) -> None:
    watch = Watch()
    watch.read("usb 1-1: reset", line)

    assert watch.started == [watch.time]
    assert line.startswith(BEGINS)


@pytest.mark.parametrize("line", CONCERN_NO_GPU)
def test_another_line_starts_no_cycle(line: str) -> None:
    watch = Watch()
    watch.read(line)

    assert (watch.started, watch.state.is_watching_gpus) == ([], False)


def test_a_line_before_the_first_cycle_starts_none() -> None:
    watch = Watch()
    watch.state = AgentState("n")
    GpuWatch(watch.state, lambda: watch.started.append(0.0)).read([Record(1, 0.0, 0, CONCERN_A_GPU[0])])

    assert watch.started == []


def test_a_flood_starts_one_cycle_and_its_repeats_end_after_it() -> None:
    watch = Watch()
    for _ in range(3600):
        watch.read(*CONCERN_A_GPU)
        watch.time += 1.0

    assert watch.started == [1000.0]
    assert watch.state.is_watching_gpus
    watch.time += WATCH_SECONDS
    assert not watch.state.is_watching_gpus

    watch.read(CONCERN_A_GPU[0])
    assert watch.started == [1000.0, watch.time]


def test_the_next_observation_of_a_suspect_does_not_come_sooner() -> None:
    watch = Watch()
    lost = Outcome(CHECK.name, CHECK.group, findings=(LOST.on(f"gpu/{GPU}", "NVML error 15"),))
    memory = after_cycle(watch.state.memory, JudgedCycle([lost]), watch.state.now())
    watch.state.remember(watch.state.judgement.after(memory))
    watch.read(CONCERN_A_GPU[0])

    assert (watch.started, watch.state.is_watching_gpus) == ([], True)


RESET = {"kind": "reset", "holder": "reset-1", "until": timestamp(WALL + timedelta(hours=1))}


@pytest.mark.parametrize(
    "node",
    [
        NodeState("n", labels={"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}),
        NodeState("n", labels={"nvidia.com/mig.config.state": "pending"}),
        NodeState("n", annotations={RUN: json.dumps(RESET)}),
    ],
)
def test_a_change_of_the_driver_or_a_reset_starts_no_cycle(node: NodeState) -> None:
    watch = Watch()
    watch.state.set_node(node)
    watch.state.see_run(node)
    watch.read(*CONCERN_A_GPU)

    assert (watch.started, watch.state.is_watching_gpus) == ([], False)

    watch.state.set_node(NodeState("n"))
    watch.state.see_run(NodeState("n"))
    watch.read(*CONCERN_A_GPU)
    assert watch.started == [watch.time]
