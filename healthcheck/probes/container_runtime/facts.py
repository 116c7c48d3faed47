"""Facts about a node's container runtimes, for the checks and for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from healthcheck.model import UnobservedCause

CONTAINERD, CRIO, DOCKER = "containerd", "CRI-O", "Docker"
"""Supported container runtimes. The kubelet uses Docker through cri-dockerd."""
RUNC = "runc"
"""The handler that is built into every runtime."""
SCHEMA_OF_2 = 3
"""From this schema on, only containerd 2 reads a file."""

UNREADABLE = UnobservedCause(
    "RuntimeConfigUnreadable",
    "A file of the container runtime's configuration is too large, is not readable, or is missing in a saved tree.",
    "Check the file named in the message.",
)

NOT_FOUND = UnobservedCause(
    "RuntimeNotFound",
    "The kubelet is configured for containerd, but neither its process nor its configuration was found.",
    "Find the process that listens on the socket in the message, and the configuration file that it reads.",
)

_MOMENTS = ("written", "started")


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"


class _Fact(Struct, frozen=True, repr_omit_defaults=True):
    """Base class of facts. A person sees them without default values, and with timestamps as dates."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        entries = super().__rich_repr__()
        return [(name, _moment(value) if name in _MOMENTS else value) for name, value in entries]


class ReadFile(_Fact, frozen=True):
    """`written` is when it was last changed, in seconds of UTC."""

    path: str
    written: float


class ConfigurationProblem(_Fact, frozen=True):
    """Reason why a runtime can't read a file; `line` and `column` count from 1, 0 means unknown."""

    file: str
    message: str
    line: int = 0
    column: int = 0
    only_ours: bool = False
    """Only this program can't read it, due to its limits; the runtime may be able to."""


class Handler(_Fact, frozen=True):
    """A runtime handler with which a pod can be started, and its file and line of definition (0: unknown)."""

    name: str
    runtime_type: str
    binary: str
    systemd_cgroup: bool | None
    """None: nothing is configured, as of containerd a handler without a table of options."""
    file: str
    line: int = 0
    privileged_without_host_devices: bool = False
    """A privileged container gets only the devices assigned to it (containerd, CRI-O)."""
    ignored_binary: str = ""
    """The program in BinaryName if containerd's oldest shim reads another option instead."""


class Misplaced(_Fact, frozen=True):
    """Handlers in a table that the runtime ignores because of the file's schema or of the other files."""

    file: str
    schema: int
    section: str
    right_section: str
    handlers: tuple[Handler, ...]
    right_schema: int
    """The schema of `right_section`. Where it is not the file's own, the files together are why it counts."""
    handler_file: str = field(default="", name="beside")
    """File whose handlers are in `right_section`; '' if there is none. Saved evidence calls it `beside`."""
    read_from: str = ""
    """The release from which on they are read there too, as `2.3`; '' where none does."""


class RuntimeConfiguration(_Fact, frozen=True):
    """Effective configuration of one container runtime; `files` are in the runtime's own order.

    Without any file, the runtime's defaults apply.
    """

    path: str
    kind: str = CONTAINERD
    version: str = ""
    """Of the program that reads it, as `2.1.4`, as it says itself; '' where it was not asked, or did not answer."""
    schema: int = 1
    """containerd's `version`; 0 for the others."""
    files: tuple[ReadFile, ...] = ()
    handlers: tuple[Handler, ...] = ()
    default: str = "runc"
    cdi: bool = False
    cdi_folders: tuple[str, ...] = ()
    misplaced: tuple[Misplaced, ...] = ()
    problem: ConfigurationProblem | None = None
    address: str = ""
    """The socket, as the file has it; '' where it says nothing."""
    systemd_cgroup: bool | None = None
    """The cgroup driver where the runtime has one for all handlers (CRI-O, Docker); None where each has its own."""
    disabled_in: str = ""
    """The file that switches the CRI plugin off (containerd's disabled_plugins)."""
    unread: tuple[ReadFile, ...] = ()
    """Files in drop-in folders beside it that it does not read."""
    generation: str = ""
    """containerd's release by whose rules the files were put together, as `1.7`; assumed where `version` is ''."""
    built_in: tuple[str, ...] = ()
    """Handlers that it has beside those of its files: `runc`, unless containerd 1 found a table of handlers."""
    template: str = ""
    """The distribution makes `path` from this one when it starts: editing `path` is lost."""
    unread_handlers: tuple[Handler, ...] = ()
    """What the files of `unread` define, each with its file."""
    default_in: str = ""
    """The file that names `default`; '' where none does."""
    replaced: tuple[Handler, ...] = ()
    """What the other files define and `replaced_by` does not: containerd 1 keeps the last file's table alone."""
    replaced_by: str = ""

    @property
    def is_containerd_2(self) -> bool:
        """Whether it is containerd 2 or later, by its version; by the schema if the version is unknown."""
        if self.kind != CONTAINERD:
            return False
        major = self.version.partition(".")[0]
        return int(major) >= 2 if major.isdecimal() and len(major) < 9 else self.schema >= SCHEMA_OF_2


class RuntimeBinary(_Fact, frozen=True):
    """A program that a handler names, as `named`. `path` is its location; '' if it was not found."""

    named: str
    path: str = ""
    executable: bool = False
    architecture: str = ""
    """Of an ELF file, as uname says it: `x86_64`, `aarch64`; '' for a script and where it can't be read."""


class CdiSpec(_Fact, frozen=True):
    """A CDI specification in a folder that the used runtime reads.

    `problem` is the reason why it can't be read.
    """

    path: str
    kind: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Device nodes, hooks' programs and files to be mounted of the host that it names and that do not exist."""
    problem: ConfigurationProblem | None = None


class Toolkit(_Fact, frozen=True):
    """The configuration of NVIDIA's own runtime program, which it reads at each container's start."""

    path: str
    mode: str = ""
    """'' where the file says nothing: `auto`."""
    driver_root: str = ""
    ldconfig: str = ""
    """As the file has it, `@/sbin/ldconfig`: with the @ the path is the host's."""
    missing: tuple[str, ...] = ()
    """Paths of the host that it names and that do not exist."""
    envvar_when_unprivileged: bool = True
    volume_mounts: bool = False
    problem: ConfigurationProblem | None = None


class Kubelet(_Fact, frozen=True):
    """Facts of the kubelet. `pid` is 0 if only its files are visible; `config` is '' without a file.

    `systemd_cgroup`: whether its cgroup driver is systemd; None if it is not set.
    """

    name: str
    pid: int
    config: str = ""
    systemd_cgroup: bool | None = None


class Live(_Fact, frozen=True):
    """Report of the running runtime over its socket (CRI Status): the configuration that it loaded."""

    name: str = ""
    """RuntimeName: `containerd`, `cri-o`, `docker`."""
    version: str = ""
    handlers: tuple[str, ...] | None = None
    """None: this version does not report them."""
    binaries: tuple[tuple[str, str], ...] = ()
    """Handler and BinaryName, as far as reported."""
    default: str = ""
    cdi: bool | None = None
    cdi_folders: tuple[str, ...] = ()
    not_ready: str = ""
    """Reason and message of the condition RuntimeReady where it is false."""


class ContainerRuntime(_Fact, frozen=True):
    """`used` is the configuration of the kubelet's own runtime; None with `why_none`."""

    used: RuntimeConfiguration | None
    why_none: str = ""
    socket: str = ""
    known_from: str = ""
    """Source of the information that the kubelet uses this runtime."""
    how: tuple[str, ...] = ()
    """The steps by which we know it, for a person: process, flag or file, socket, its holder."""
    assumed: bool = False
    """Whether it is assumed from the distribution's known layout, without a process as evidence."""
    started: float | None = None
    """When that runtime was started, in seconds of UTC."""
    since_boot: float | None = None
    """The same in seconds after the boot, which no clock that is set changes: it tells one process from the next."""
    unit: str = ""
    """Its systemd unit, from its cgroup: `snap.k8s.containerd.service`."""
    distribution: str = ""
    """Empty if unknown."""
    kubelet: Kubelet | None = None
    others: tuple[RuntimeConfiguration, ...] = ()
    """What other container runtimes on the node read, or would."""
    programs: tuple[RuntimeBinary, ...] = ()
    """Those that the used one's handlers name, each once; not one of which a captured tree can't tell."""
    cdi_specs: tuple[CdiSpec, ...] = ()
    """Of NVIDIA's devices for pods, in the used one's folders; those of the operator's own pods are none."""
    toolkit: Toolkit | None = None
    live: Live | None = None
    """None: it was not asked, or did not answer (`why_not_live`)."""
    why_not_live: str = ""
    architecture: str = ""
    """The host's, as uname says it, taken from its own programs in a captured tree; '' where nobody knows."""
    for_gpus: bool | None = None
    """Whether the node has GPUs for containers; None in a captured tree without /sys."""
    not_found: bool = False
    """Whether the kubelet is configured for containerd, but `used` is None because it was not found."""

    @property
    def running_handlers(self) -> dict[str, str]:
        """Return the handlers with which a pod can be started now, each with its program if it is known.

        The running runtime's report outranks its files. `runc` is built in.
        """
        if self.live is not None and self.live.handlers is not None:
            programs = dict(self.live.binaries)
            return {RUNC: "", **{name: programs.get(name, "") for name in self.live.handlers if name}}
        return {RUNC: "", **{handler.name: handler.binary for handler in self.used.handlers}} if self.used else {}

    @property
    def running_default(self) -> str:
        """Return the handler of pods that name none; '' if it is unknown."""
        message = self.live.default if self.live is not None else ""
        return message or (self.used.default if self.used is not None else "")

    @property
    def cdi_is_on(self) -> bool:
        """Whether the runtime itself puts devices into containers by their CDI names."""
        if self.live is not None and self.live.cdi is not None:
            return self.live.cdi
        return self.used is not None and self.used.cdi
