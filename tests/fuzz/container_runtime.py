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
_SECTIONS = ("cri", "'io.containerd.grpc.v1.cri'", "'io.containerd.cri.v1.runtime'")
_VALUES = st.sampled_from(["1", "'x'", "true", "[]", "['/a']", "{}"])


def _table(section: str, name: str) -> st.SearchStrategy[str]:
    lines = st.lists(
        st.sampled_from(
            [
                "runtime_type = 'io.containerd.runc.v2'",
                "privileged_without_host_devices = true",
                "options.BinaryName = '/a'",
                "options.BinaryName = '/b'",
                "options.SystemdCgroup = true",
            ]
        ),
        unique_by=lambda line: line.partition("=")[0],
        max_size=4,
    )
    return lines.map(lambda rest: "\n".join([f"[plugins.{section}.containerd.runtimes.{name}]", *rest]))


_settings = st.one_of(
    st.sampled_from(_SECTIONS).flatmap(lambda section: _table(section, "nvidia")),
    st.sampled_from(_SECTIONS).flatmap(lambda section: _table(section, "runc")),
    st.builds(
        "[plugins.{}.containerd]\ndefault_runtime_name = '{}'".format,
        st.sampled_from(_SECTIONS),
        st.sampled_from(["nvidia", "runc", ""]),
    ),
    st.builds("[plugins.{}]\nenable_cdi = {}".format, st.sampled_from(_SECTIONS), st.sampled_from(["true", "false"])),
    st.builds("[plugins.{}]\ncdi_spec_dirs = {}".format, st.sampled_from(_SECTIONS), st.sampled_from(["[]", "['/a']"])),
    st.just("[grpc]\naddress = '/run/a.sock'"),
    st.just("['plugins'.'io.containerd.server.v1.grpc']\naddress = '/run/b.sock'"),
)
_wrong = st.builds(
    "[plugins.{}{}]\n{} = {}".format,
    st.sampled_from(_SECTIONS),
    st.sampled_from(["", ".containerd", ".containerd.runtimes", ".containerd.runtimes.nvidia"]),
    st.sampled_from(["containerd", "runtimes", "runc", "options", "runtime_type", "cdi_spec_dirs", "systemd_cgroup"]),
    _VALUES,
)
_heads = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "version = 1\n", "version = 2\n", "version = 2\n", "version = 3\n", "version = 4\n"]),
        st.lists(st.sampled_from([*_NAMES, "*.toml"]), max_size=2).map(
            lambda imports: f"imports = {imports}\n" if imports else ""
        ),
        st.sampled_from(["", "", "disabled_plugins = ['cri']\n", "disabled_plugins = ['io.containerd.grpc.v1.cri']\n"]),
    ),
)


_files = st.builds(
    lambda start, rest: start + "\n".join([*rest, ""]),
    _heads,
    st.lists(st.one_of(_settings, _wrong, st.text(max_size=20)), max_size=4),
)
any_trees = st.fixed_dictionaries(dict.fromkeys(_NAMES, _files))


def any_tree_is_read(tree: Mapping[str, str], damages: Sequence[tuple[int, int, bytes]], release: str) -> None:
    """Or there is a reason; and a second read gives the same."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        put(root, tree)
        main = damaged(tree[MAIN].encode("utf-8", "surrogatepass"), list(damages))
        (root / MAIN).write_bytes(main)
        seen = read_configuration(root, f"/{MAIN}", release)
        assert seen == read_configuration(root, f"/{MAIN}", release)
    assert (seen.version, len(seen.files) >= 1) == (release, True)
    assert seen.problem is None or seen.handlers == ()
    assert {handler.file for handler in seen.handlers} <= {file.path for file in seen.files}


def put(root: Path, tree: Mapping[str, str]) -> None:
    for name, text in tree.items():
        (root / name).write_bytes(text.encode("utf-8", "surrogatepass"))
