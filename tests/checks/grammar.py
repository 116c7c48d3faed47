"""Strategies for lines of the kernel's log: every form that the driver documents, and text that only quotes one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.catalog.sxid import sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import xid_table

UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>, "
DRIVER_TEXTS = (
    "GPU has fallen off the bus.",
    "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x2c0007",
    "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
    "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    "Row Remapper: New row marked for remapping, reset gpu to activate.",
    "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
    "0cb5(2d50) 8503d428 ffffff87",
    "First line\nsecond line",
)
SWITCH_WORDS = ("Fatal", "Non-fatal", "Correctable")
SWITCH_TEXTS = ("Link 30 LTSSM Fault Up", "Link 02 ingress invalid ACL (First)", "instance=0, chiplet=1", "SOE HALTED")
QUOTING = (
    "systemd[1]: forwarded: {}",
    "python[17]: {}",
    "[  100.5] {}",
    " {}",
    'audit: comm="{}"',
    "'{}'",
    '{{"log": "{}"}}',
    "line one\n{}",
    "NVRM: {}",
    "grep {}",
    "kernel: {}",
)


LONGEST_COMM, LONGEST_RULE_PREFIX = 15, 127
BY_THE_KERNEL = (
    "{}[4711]: segfault at 0 ip 00007f3a sp 00007ffd error 4 in libc.so.6[28000+195000] likely on CPU 0",
    "{}[4711]: unhandled exception: SP Alignment, ESR 0x00000000, in python3.11[400000+5c4000]",
    "{}[4711] bad frame in rt_sigreturn frame:00007ffd ip:7f3a sp:7ffd orax:ffffffffffffffff in x[28000+1000]",
    "{}[4711] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7ffd ax:0 si:0 di:0",
    "{}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null)",
    "{}: attempt to access beyond end of device",
    "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=985",
    "{} (4711): drop_caches: 3",
    "{} (4711) used greatest stack depth: 11016 bytes left",
    "traps: {}[4711] trap divide error ip:55d0 sp:7ffd error:0 in {}[55d0+1000]",
    "traps: {}[4711] general protection fault ip:55d0 sp:7ffd error:0",
    "Memory cgroup out of memory: Killed process 4711 ({}) total-vm:1024kB, anon-rss:512kB",
    "Out of memory: Killed process 4711 ({}) total-vm:1024kB, anon-rss:512kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task_memcg=/x,task={},pid=4711,uid=0",
    "INFO: task {}:4711 blocked for more than 120 seconds.",
    "process '{}' started with executable stack",
    "process '{}' launched '/bin/sh' with NULL argv: empty string added",
    'audit: type=1701 audit(1700000000.123:42): auid=0 uid=0 pid=4711 comm="{}" exe="/usr/bin/python3" sig=11',
    "CPU: 3 PID: 4711 Comm: {} Tainted: P           OE",
    "warning: `{}' uses 32-bit capabilities (legacy support in use)",
)
"""Records of facility 0 that hold the name of a process: kernel/, mm/, fs/, arch/x86 and arm64 of Linux 5.4 to 6.12."""
PACKET = "{}IN=eth0 OUT= MAC=02:42:ac:11:00:02 SRC=10.0.0.7 DST=10.0.0.9 LEN=60 TOS=0x00 PREC=0x00 TTL=64 PROTO=TCP"


@dataclass(frozen=True, slots=True)
class Line:
    """A line as a driver writes it, with its meaning."""

    text: str
    code: int
    subject: str
    process: str = ""
    message: str = ""


@st.composite
def addresses(draw: st.DrawFn) -> tuple[str, str]:
    """An address as some driver prints it, and as we call it."""
    domain = draw(st.integers(0, 0xFFFF) | st.integers(0, 0x7FFFFFFF))
    bus, device = draw(st.integers(0, 0xFF)), draw(st.integers(0, 0x1F))
    digits = draw(st.sampled_from([4, 8])) if domain <= 0xFFFF else 8
    written = f"{domain:0{digits}x}:{bus:02x}:{device:02x}"
    if draw(st.booleans()):
        written = written.upper()
    written = draw(st.sampled_from(["PCI:", ""])) + written + draw(st.sampled_from(["", ".0"]))
    return written, f"{domain:04x}:{bus:02x}:{device:02x}.0"


def process_names() -> st.SearchStrategy[str]:
    """Return a strategy for process names: at most 15 characters, as the kernel stores them.

    A comma in a name is followed by a lowercase letter or a bracket.
    """
    anything = st.text(st.characters(exclude_characters=",\n", exclude_categories=["Cs", "Cc"]), max_size=15)
    known = ["python3", "ray::WorkerDict", "nvc:[driver]", "my train, v2", 'it\'s "q"', "a: 79, b", "(x), [y], 'z'"]
    return anything | st.sampled_from(known)


@st.composite
def xid_lines(draw: st.DrawFn, codes: st.SearchStrategy[int] | None = None) -> Line:
    code = draw(codes if codes is not None else st.sampled_from(sorted(xid_table())))
    written, address = draw(addresses())
    instance = draw(st.none() | st.integers(0, 15))
    compute = draw(st.none() | st.integers(0, 15)) if instance is not None else None
    place = "" if instance is None else f" GPU-I:{instance:02d}"
    place += "" if compute is None else f" GPU-CI:{compute:02d}"
    message = draw(st.sampled_from(DRIVER_TEXTS))
    process, named = draw(_processes())
    subject = f"gpu/{address}" + ("" if instance is None else f"/gi{instance}")
    return Line(f"NVRM: Xid ({written}{place}): {code}, {named}{message}", code, subject, process, message)


@st.composite
def _processes(draw: st.DrawFn) -> tuple[str, str]:
    kind = draw(st.sampled_from(["none", "unknown", "known"]))
    if kind == "none":
        return "", ""
    if kind == "unknown":
        return "", UNKNOWN_PROCESS
    pid, name = draw(st.integers(1, 4194304)), draw(process_names())
    return f"{pid} {name}".strip() if name else str(pid), f"pid={pid}, name={name}, "


@st.composite
def sxid_lines(draw: st.DrawFn) -> Line:
    code = draw(st.sampled_from(sorted(sxid_table())))
    written, address = draw(addresses())
    switch = draw(st.sampled_from(["", "0", "3", "11"]))
    word, message = draw(st.sampled_from(SWITCH_WORDS)), draw(st.sampled_from(SWITCH_TEXTS))
    text = f"nvidia-nvswitch{switch}: SXid ({written}): {code:05d}, {word}, {message}"
    return Line(text, code, f"nvswitch/{address}", message=f"{word}, {message}")


@st.composite
def driver_lines(draw: st.DrawFn) -> str:
    """A line without a number that is a fault."""
    written, _ = draw(addresses())
    forms = (
        f"NVRM: GPU {written}: GPU has fallen off the bus.",
        (
            f"NVRM: The NVIDIA GPU {written}\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands."
        ),
        f"NVRM: GPU {written}: RmInitAdapter failed! (0x24:0x72:1568)",
        f"NVRM: GPU {written}: rm_init_adapter failed, device minor number 5",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x",
        "NVRM: API mismatch: the client has the version 545.23.08, but\nNVRM: this kernel module has another",
    )
    return draw(st.sampled_from(forms))


def fault_lines() -> st.SearchStrategy[str]:
    """Return a strategy for all lines that an event check reads."""
    return st.one_of(xid_lines().map(_text), sxid_lines().map(_text), driver_lines())


def names() -> st.SearchStrategy[str]:
    """Process names with which the kernel's record begins like the driver's line, or quotes it."""
    begins = fault_lines().map(lambda line: line[:LONGEST_COMM])
    return begins | st.builds(lambda before, line: f"{before}{line}"[:LONGEST_COMM], st.text(max_size=3), fault_lines())


def kernels_lines() -> st.SearchStrategy[str]:
    """Lines of the kernel itself with such a name, and of a packet filter rule."""
    of_a_packet = fault_lines().map(lambda line: PACKET.format(line[:LONGEST_RULE_PREFIX]))
    return st.builds(lambda form, name: form.replace("{}", name), st.sampled_from(BY_THE_KERNEL), names()) | of_a_packet


def quoted_lines() -> st.SearchStrategy[str]:
    """Other text with such a line in it."""
    return st.builds(lambda form, line: form.format(line), st.sampled_from(QUOTING), fault_lines())


def _text(line: Line) -> str:
    return line.text
