"""Trees of containerd's files: of words that mean something to it, in any order and with any damage."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import strategies as st

from healthcheck.probes.container_runtime.containerd import read_configuration
from tests.fuzz.damage import damaged

MAIN = "config.toml"
RELEASES = ("", "1.6.20", "1.7.28", "2.1.4", "2.3.0", "2.4.2")
_NAMES = (MAIN, "a.toml", "b.toml", "c.toml")
_sections = st.sampled_from(["cri", "'io.containerd.grpc.v1.cri'", "'io.containerd.cri.v1.runtime'"])
_levels = st.sampled_from(["", *(f".containerd{text}" for text in ("", ".runtimes", ".runtimes.nvidia"))])
_keys = ["enable_cdi", "cdi_spec_dirs", "systemd_cgroup", "containerd", "default_runtime_name", "runtimes", "runc"]
_keys += ["runtime_type", "options", "options.BinaryName", "options.SystemdCgroup"]
_values = ["1", "'x'", "'nvidia'", "'io.containerd.runc.v2'", "true", "[]", "['/a']", "{}"]
_settings = st.one_of(
    st.builds("[plugins.{}{}]\n{} = {}".format, _sections, _levels, st.sampled_from(_keys), st.sampled_from(_values)),
    st.just("[grpc]\naddress = '/run/a.sock'"),
    st.just("[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/b.sock'"),
    st.text(max_size=20),
)
_heads = st.builds(
    "version = {}\nimports = {}\ndisabled_plugins = {}\n".format,
    st.integers(1, 4),
    st.lists(st.sampled_from([*_NAMES, "*.toml"]), max_size=2),
    st.sampled_from([[], ["cri"], ["io.containerd.grpc.v1.cri"]]),
)
_files = st.builds(lambda lines: "\n".join([*lines, ""]), st.lists(_settings, max_size=5))
any_trees = st.fixed_dictionaries(dict.fromkeys(_NAMES, _files | st.builds("{}{}".format, _heads, _files)))


def any_tree_is_read(tree: Mapping[str, str], damages: Sequence[tuple[int, int, bytes]], release: str) -> None:
    """Or there is a reason; and a second read gives the same."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in tree.items():
            raw = text.encode("utf-8", "surrogatepass")
            (root / name).write_bytes(damaged(raw, list(damages)) if name == MAIN else raw)
        seen = read_configuration(root, f"/{MAIN}", release)
        assert seen == read_configuration(root, f"/{MAIN}", release)
    assert (seen.version, len(seen.files) >= 1) == (release, True)
    assert seen.problem is None or seen.handlers == ()
    assert {handler.file for handler in seen.handlers} <= {file.path for file in seen.files}
