"""Facts about a node's container runtimes, for the checks and for people."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from healthcheck.model import UnobservedCause
from healthcheck.text.documents import MalformedError

CONTAINERD, CRIO, DOCKER = "containerd", "CRI-O", "Docker"
"""Supported container runtimes. The kubelet uses Docker through cri-dockerd."""
RUNC = "runc"
"""Name of the handler that is built into every runtime."""
SCHEMA_OF_2 = 3
"""From this schema on, only containerd 2 reads a file."""

UNREADABLE = UnobservedCause(
    "RuntimeConfigUnreadable",
    "Neither the running container runtime nor its own loader could be asked for its configuration.",
    "Read the reason in the message: the runtime's socket, its process, or the limits of this program.",
)

NOT_FOUND = UnobservedCause(
    "RuntimeNotFound",
    "The kubelet is configured for containerd, but no process that listens on its socket was found.",
    "Find the process that listens on the socket in the message, and the configuration file that it reads.",
)


class _Fact(Struct, frozen=True, repr_omit_defaults=True):
    """Base class of facts. A person sees them without default values."""


class ReadFile(_Fact, frozen=True):
    """A file of the configuration. `written` is the time of its last change, in seconds of UTC."""

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

    @classmethod
    def of(cls, error: MalformedError, file: str) -> Self:
        return cls(file, error.message, error.line, error.column, error.only_ours)


class Handler(_Fact, frozen=True):
    """A runtime handler with which a pod can be started."""

    name: str
    runtime_type: str = ""
    binary: str = ""
    systemd_cgroup: bool | None = None
    """Whether the cgroup driver is systemd; None if it is not set, as for a containerd handler without options."""
    privileged_without_host_devices: bool = False
    """Whether a privileged container gets only the devices assigned to it."""


class RuntimeConfiguration(_Fact, frozen=True):
    """Configuration of one container runtime, as its own loader or the running runtime reports it."""

    path: str
    kind: str = CONTAINERD
    handlers: tuple[Handler, ...] = ()
    default: str = ""
    """Handler of pods that name none; '' if it is not reported."""
    cdi: bool = False
    cdi_folders: tuple[str, ...] = ()
    cri_disabled: bool = False
    """Whether the CRI plugin is disabled (containerd's disabled_plugins)."""
    schema: int = 0
    """containerd's `version`, as its loader prints it; 0 if unknown."""
    section: str = ""
    """Plugin in whose table containerd's loader prints the handlers."""


class NvidiaDefinition(_Fact, frozen=True):
    """A table in a file on disk that defines NVIDIA's handler, whether or not a runtime takes it from there."""

    file: str
    handler: str
    config: str
    """Configuration file of the runtime that reads `file`; '' if no known runtime does."""
    kind: str = CONTAINERD
    binary: str = ""


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
    """Report of the running runtime over its socket (CRI Status): the configuration in force."""

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
    types: tuple[tuple[str, str], ...] = ()
    """Name and runtime type of the handlers, as far as reported."""


class RuntimeAnswer(_Fact, frozen=True):
    """Answers of the running runtime and of its loader, each with the reason if there is none."""

    live: Live | None = None
    why_not_live: str = ""
    on_disk: RuntimeConfiguration | None = None
    refusal: ConfigurationProblem | None = None
    """Words of the loader if it refuses the files."""
    why_not_loaded: str = ""


class ContainerRuntime(_Fact, frozen=True):
    """Container runtimes of a node: the kubelet's own, and the files of others."""

    path: str = ""
    """Configuration file of the kubelet's runtime; '' if the runtime is unknown (`why_none`)."""
    kind: str = CONTAINERD
    why_none: str = ""
    socket: str = ""
    known_from: str = ""
    """Source of the information that the kubelet uses this runtime."""
    how: tuple[str, ...] = ()
    """Evidence for this, step by step, for people: process, flag or file, socket, owner of the socket."""
    pid: int = 0
    """Process that listens on the socket; 0 if it is not visible or not the host's."""
    since_boot: float | None = None
    """Start time in seconds after the boot. Changes of the clock do not affect it, so it identifies the process."""
    flags: tuple[str, ...] = ()
    """Flags of the process that its loader needs too."""
    unit: str = ""
    """The runtime's systemd unit, from its cgroup: `snap.k8s.containerd.service`."""
    distribution: str = ""
    """Kubernetes distribution; '' if unknown."""
    template: str = ""
    """Template from which the distribution generates `path` at its start. Edits of `path` are lost."""
    kubelet: Kubelet | None = None
    files: tuple[ReadFile, ...] = ()
    """Files that the runtime reads: `path`, its imports or its drop-ins."""
    missing_imports: tuple[str, ...] = ()
    """Imports that are named without a pattern and do not exist."""
    others: tuple[str, ...] = ()
    """Configuration files of other container runtimes on the node, running or not."""
    definitions: tuple[NvidiaDefinition, ...] = ()
    programs: tuple[RuntimeBinary, ...] = ()
    """Programs of the handlers in `used`, each once."""
    cdi_specs: tuple[CdiSpec, ...] = ()
    """Specifications of NVIDIA's devices for pods, in the folders of `used`, without those for the operator's pods."""
    toolkit: Toolkit | None = None
    live: Live | None = None
    """Report of the running runtime; None without an answer (`why_not_live`)."""
    why_not_live: str = ""
    on_disk: RuntimeConfiguration | None = None
    """Configuration in the files, as the runtime's own loader prints it; None without one (`why_not_loaded`)."""
    refusal: ConfigurationProblem | None = None
    """Words of the loader that refuses the files: the runtime would not start with them."""
    why_not_loaded: str = ""
    architecture: str = ""
    """Architecture of the host as in uname."""
    for_gpus: bool | None = None
    """Whether the node has GPUs for containers; None in a captured tree without /sys."""
    not_found: bool = False
    """Whether the kubelet is configured for containerd, but its process was not found."""

    @property
    def used(self) -> RuntimeConfiguration | None:
        """Return the configuration in the files, else that in force; None if neither is known."""
        return self.on_disk or self.in_force

    @property
    def in_force(self) -> RuntimeConfiguration | None:
        """Return the configuration of the running runtime; None if it does not report its handlers."""
        live = self.live
        if live is None or live.handlers is None:
            return None
        types, binaries, drivers = dict(live.types), dict(live.binaries), dict(live.systemd_cgroups)
        handlers = (
            Handler(name, types.get(name, ""), binaries.get(name, ""), drivers.get(name)) for name in live.handlers
        )
        return RuntimeConfiguration(
            self.path,
            self.kind,
            tuple(handlers),
            live.default,
            bool(live.cdi),
            live.cdi_folders,
        )

    @property
    def is_containerd_2(self) -> bool:
        """Whether the runtime is containerd 2 or later, by its version or by the schema that its loader prints."""
        if self.kind != CONTAINERD:
            return False
        major = self.live.version.partition(".")[0] if self.live is not None else ""
        if major.isdecimal() and len(major) < 9:
            return int(major) >= 2
        return self.on_disk is not None and self.on_disk.schema >= SCHEMA_OF_2

    @property
    def running_handlers(self) -> dict[str, str]:
        """Return the handlers with which a pod can be started now, each with its program if it is known.

        The running runtime's report outranks its files. `runc` is built in.
        """
        known = self.in_force or self.on_disk
        return (
            {RUNC: "", **{handler.name: handler.binary for handler in known.handlers if handler.name}} if known else {}
        )

    @property
    def running_default(self) -> str:
        """Return the handler of pods that name none; '' if it is unknown."""
        known = self.in_force or self.on_disk
        return known.default if known is not None else ""

    @property
    def cdi_is_on(self) -> bool:
        """Whether the runtime itself puts devices into containers by their CDI names."""
        if self.live is not None and self.live.cdi is not None:
            return self.live.cdi
        return self.on_disk is not None and self.on_disk.cdi
