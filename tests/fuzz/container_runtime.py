"""Outputs of a container runtime's loader: words that mean something to it, in any order and with any damage."""

from __future__ import annotations

from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, CRIO, ContainerRuntime
from gpu_healthcheck.healthcheck.probes.container_runtime.loader import _answer
from gpu_healthcheck.healthcheck.text.documents import MalformedError
from tests.fuzz.damage import byte_damages, damaged

_sections = st.sampled_from(["plugins.cri", "plugins.'io.containerd.cri.v1.runtime'", "crio.runtime", "crio"])
_levels = st.sampled_from(["", ".containerd", ".containerd.runtimes", ".containerd.runtimes.nvidia"])
_keys = ["enable_cdi", "cdi_spec_dirs", "containerd", "default_runtime_name", "runtimes", "runc", "default_runtime"]
_keys += ["runtime_type", "runtime_path", "options", "options.BinaryName", "options.SystemdCgroup"]
_values = ["1", "'x'", "'nvidia'", "'io.containerd.runc.v2'", "true", "[]", "['/a', 1]", "{}"]
_tables = st.builds("[{}{}]\n{} = {}\n".format, _sections, _levels, st.sampled_from(_keys), st.sampled_from(_values))
_heads = st.sampled_from(["", "version = 3\ndisabled_plugins = ['cri', 1]\n", "version = '2'\nplugins = 1\n"])
_errors = st.sampled_from(["containerd: ", "level=fatal msg=", "file=/a/b.toml row=3\n", "at row 3 column 9", "(3, 2)"])
outputs = {
    "kind": st.sampled_from([CONTAINERD, CRIO]),
    "code": st.sampled_from([0, 1, 2, -9]),
    "out": st.builds(lambda head, tables: head + "".join(tables), _heads, st.lists(_tables, max_size=4)),
    "errors": st.lists(_errors | st.text(max_size=10), max_size=4).map("".join),
    "damages": st.lists(byte_damages, max_size=4),
}


def any_output_is_read(kind: str, code: int, out: str, errors: str, damages: list[tuple[int, int, bytes]]) -> None:
    """Return a configuration or a refusal, both printable, or raise an expected error."""
    raw = damaged(out.encode("utf-8", "surrogatepass"), list(damages))
    ended = ProgramEnd(code, raw, errors.encode("utf-8", "surrogatepass"))
    try:
        answer = _answer(ContainerRuntime("/c", kind), ended)
    except (ProbeError, MalformedError):
        return
    assert (answer.on_disk is None) != (answer.refusal is None)
    texts = [answer.refusal.message, answer.refusal.file] if answer.refusal is not None else []
    for handler in answer.on_disk.handlers if answer.on_disk is not None else ():
        texts += [handler.name, handler.binary, handler.runtime_type]
    assert all(text.isprintable() for text in texts)
