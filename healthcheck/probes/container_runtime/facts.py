"""Facts about a node's container runtimes, for the checks and for people."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from gpu_healthcheck.healthcheck.model import UnobservedCause
from gpu_healthcheck.healthcheck.text.documents import MalformedError

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


class RuntimeConfiguration(_Fact, frozen=True):
    """Configuration of one container runtime, as its own loader or the running runtime reports it."""

    handlers: tuple[Handler, ...] = ()
    default: str = ""
    """Handler of pods that name none; '' if it is not reported."""
    cdi: bool | None = None
    """Whether the runtime puts devices into containers by their CDI names; None if it is not reported."""
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
    """Report of the running runtime over its socket (CRI Status)."""

    name: str = ""
    """The RuntimeName: `containerd`, `cri-o`, `docker`."""
    version: str = ""
    not_ready: str = ""
    """Reason and message of the condition RuntimeReady if it is false."""
    configuration: RuntimeConfiguration | None = None
    """The configuration in force, as far as reported; None if this version does not report its handlers."""


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
    hook: str = ""
    """OCI hook of NVIDIA's that CRI-O runs for containers of any handler; '' if there is none."""
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
    def in_force(self) -> RuntimeConfiguration | None:
        """Return the configuration of the running runtime; None if it does not report its handlers."""
        return self.live.configuration if self.live is not None else None

    @property
    def is_known(self) -> bool:
        """Whether the running runtime or its loader reports a configuration."""
        return self.on_disk is not None or self.in_force is not None

    @property
    def used(self) -> RuntimeConfiguration:
        """Return the configuration in the files, else that in force; an empty one if neither is known."""
        return self.on_disk or self.in_force or RuntimeConfiguration()

    @property
    def running(self) -> RuntimeConfiguration:
        """Return the configuration in force, else that in the files; an empty one if neither is known."""
        return self.in_force or self.on_disk or RuntimeConfiguration()

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

        `runc` is built in.
        """
        return {RUNC: "", **{each.name: each.binary for each in self.running.handlers if each.name}}

    @property
    def cdi_is_on(self) -> bool:
        """Whether the runtime itself puts devices into containers by their CDI names."""
        reported = (each.cdi for each in (self.in_force, self.on_disk) if each is not None and each.cdi is not None)
        return next(reported, False)
