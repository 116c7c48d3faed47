"""Facts about a node's container runtimes, for the checks and for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from healthcheck.model import UnobservedCause

CONTAINERD, CRIO, DOCKER = "containerd", "CRI-O", "Docker"
"""Supported container runtimes. The kubelet uses Docker through cri-dockerd."""
RUNC = "runc"
"""Name of the handler that is built into every runtime."""
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
    """A file that was read. `written` is the time of its last change, in seconds of UTC."""

    path: str
    written: float


class ConfigurationProblem(_Fact, frozen=True):
    """Reason why a runtime can't read a file; `line` and `column` count from 1, 0 means unknown."""

    file: str
    message: str
    line: int = 0
    column: int = 0
    only_ours: bool = False
    """Whether only the limits of this program prevent reading. The runtime may be able to read the file."""


class Handler(_Fact, frozen=True):
    """A runtime handler with which a pod can be started, and its file and line of definition (0: unknown)."""

    name: str
    runtime_type: str
    binary: str
    systemd_cgroup: bool | None
    """Whether the cgroup driver is systemd; None if it is not set, as for a containerd handler without options."""
    file: str
    line: int = 0
    privileged_without_host_devices: bool = False
    """Whether a privileged container gets only the devices assigned to it (containerd, CRI-O)."""
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
    """Schema of `right_section`. If it differs from the file's schema, all files together determine it."""
    handler_file: str = field(default="", name="beside")
    """File whose handlers are in `right_section`; '' if there is none. Saved evidence calls it `beside`."""
    read_from: str = ""
    """First release that also reads `section`, as `2.3`; '' if none does."""


class RuntimeConfiguration(_Fact, frozen=True):
    """Effective configuration of one container runtime; `files` are in the runtime's own order.

    Without any file, the runtime's defaults apply.
    """

    path: str
    kind: str = CONTAINERD
    version: str = ""
    """Version reported by the running runtime, as `2.1.4`; '' without an answer."""
    schema: int = 1
    """containerd's `version`; 0 for other runtimes."""
    files: tuple[ReadFile, ...] = ()
    handlers: tuple[Handler, ...] = ()
    default: str = "runc"
    cdi: bool = False
    cdi_folders: tuple[str, ...] = ()
    misplaced: tuple[Misplaced, ...] = ()
    problem: ConfigurationProblem | None = None
    address: str = ""
    """Socket in the file; '' if it is not set."""
    systemd_cgroup: bool | None = None
    """Whether the cgroup driver of all handlers is systemd (CRI-O, Docker); None if each handler has its own driver."""
    disabled_in: str = ""
    """File that disables the CRI plugin (containerd's disabled_plugins)."""
    generation: str = ""
    """containerd release by whose rules the files were merged, as `1.7`; assumed if `version` is ''."""
    built_in: tuple[str, ...] = ()
    """Handlers in addition to those of the files: `runc`, unless containerd 1 read a table of handlers."""
    template: str = ""
    """Template from which the distribution generates `path` at its start. Edits of `path` are lost."""
    unread_handlers: tuple[Handler, ...] = ()
    """Handlers in files of drop-in folders that the runtime does not read."""
    default_in: str = ""
    """File that sets `default`; '' if none does."""
    replaced: tuple[Handler, ...] = ()
    """Handlers of other files that `replaced_by` does not define: containerd 1 keeps only the last file's table."""
    replaced_by: str = ""

    @property
    def is_containerd_2(self) -> bool:
        """Whether the runtime is containerd 2 or later, by its version, or by the schema if the version is unknown."""
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
    """Architecture of an ELF file as in uname: `x86_64`, `aarch64`; '' for a script or an unreadable file."""


class CdiSpec(_Fact, frozen=True):
    """A CDI specification in a folder that the used runtime reads.

    `problem` is the reason why it can't be read.
    """

    path: str
    kind: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Missing host paths of its device nodes, hook programs and mounts."""
    problem: ConfigurationProblem | None = None


class Toolkit(_Fact, frozen=True):
    """The configuration that NVIDIA's runtime program reads at each container's start."""

    path: str
    mode: str = ""
    """Mode in the file; '' if it is not set, which means `auto`."""
    driver_root: str = ""
    ldconfig: str = ""
    """Path of ldconfig in the file, as `@/sbin/ldconfig`. With @, it is a path of the host."""
    missing: tuple[str, ...] = ()
    """Host paths in the configuration that do not exist."""
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
    """The RuntimeName: `containerd`, `cri-o`, `docker`."""
    version: str = ""
    handlers: tuple[str, ...] | None = None
    """Names of the handlers; None if this version does not report them."""
    binaries: tuple[tuple[str, str], ...] = ()
    """Name and BinaryName of the handlers, as far as reported."""
    default: str = ""
    cdi: bool | None = None
    cdi_folders: tuple[str, ...] = ()
    not_ready: str = ""
    """Reason and message of the condition RuntimeReady if it is false."""
    systemd_cgroups: tuple[tuple[str, bool], ...] = ()
    """Name and SystemdCgroup of the handlers, as far as reported."""


class ContainerRuntime(_Fact, frozen=True):
    """Container runtimes of a node. `used` is the configuration of the kubelet's runtime; None with `why_none`."""

    used: RuntimeConfiguration | None
    why_none: str = ""
    socket: str = ""
    known_from: str = ""
    """Source of the information that the kubelet uses this runtime."""
    how: tuple[str, ...] = ()
    """Evidence for this, step by step, for people: process, flag or file, socket, owner of the socket."""
    assumed: bool = False
    """Whether the runtime is assumed from the distribution's known layout, without a process as evidence."""
    started: float | None = None
    """Start time of the runtime, in seconds of UTC."""
    since_boot: float | None = None
    """Start time in seconds after the boot. Changes of the clock do not affect it, so it identifies the process."""
    unit: str = ""
    """The runtime's systemd unit, from its cgroup: `snap.k8s.containerd.service`."""
    distribution: str = ""
    """Kubernetes distribution; '' if unknown."""
    kubelet: Kubelet | None = None
    others: tuple[RuntimeConfiguration, ...] = ()
    """Configurations of other container runtimes on the node, running or not."""
    programs: tuple[RuntimeBinary, ...] = ()
    """Programs of the handlers in `used`, each once, without those that a captured tree may merely lack."""
    cdi_specs: tuple[CdiSpec, ...] = ()
    """Specifications of NVIDIA's devices for pods, in the folders of `used`, without those for the operator's pods."""
    toolkit: Toolkit | None = None
    live: Live | None = None
    """Report of the running runtime; None without an answer (`why_not_live`)."""
    why_not_live: str = ""
    architecture: str = ""
    """Architecture of the host as in uname; in a captured tree, from its programs; '' if unknown."""
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
