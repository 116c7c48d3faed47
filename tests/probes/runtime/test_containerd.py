"""containerd's files, as containerd puts them together."""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.probes.runtime.containerd import read_configuration
from healthcheck.probes.runtime.facts import Configuration, Handler, Misplaced, Problem
from sim.container_runtime import V2, V3, default, handler

MAIN, FIRST, SECOND = "/etc/containerd/config.toml", "/etc/containerd/a.toml", "/etc/containerd/b.toml"
V1 = "plugins.cri"
IMPORTS = 'imports = ["a.toml", "b.toml"]\n'


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)


def read(root: Path, files: dict[str, str]) -> Configuration:
    put(root, files)
    return read_configuration(root, MAIN)


def problem(root: Path, files: dict[str, str]) -> Problem:
    found = read(root, files).problem
    assert found is not None
    return found


def origins(seen: Configuration) -> dict[str, str]:
    return {one.name: one.file for one in seen.handlers}


@pytest.mark.parametrize(
    ("head", "section", "schema", "cdi"),
    [
        ("", V1, 1, False),
        ("version = 2\n", V2, 2, False),
        ("version = 3\n", V3, 3, True),
        ("version = 4\n", V3, 4, True),
    ],
)
def test_each_schema_has_its_handlers_under_its_own_plugin(
    head: str, section: str, schema: int, cdi: bool, tmp_path: Path
) -> None:
    seen = read(tmp_path, {MAIN: head + default(section, "nvidia") + handler(section, "nvidia", "/opt/n")})

    assert seen.handlers == (Handler("nvidia", "io.containerd.runc.v2", "/opt/n", True, MAIN),)
    assert (seen.schema, seen.default, seen.cdi, seen.misplaced, seen.problem) == (schema, "nvidia", cdi, (), None)


@pytest.mark.parametrize(
    ("head", "schema", "written", "right"),
    [
        ("", 1, V2, "cri"),
        ("version = 2\n", 2, V1, "io.containerd.grpc.v1.cri"),
        ("version = 3\n", 3, V1, "io.containerd.cri.v1.runtime"),
        ("version = 3\n", 3, V2, "io.containerd.cri.v1.runtime"),
        ("version = 4\n", 4, V2, "io.containerd.cri.v1.runtime"),
    ],
)
def test_handlers_under_another_plugin_are_none(
    head: str, schema: int, written: str, right: str, tmp_path: Path
) -> None:
    seen = read(tmp_path, {MAIN: head + handler(written, "nvidia", "/opt/n")})

    section = written.removeprefix("plugins.").strip('"')
    told = Handler("nvidia", "io.containerd.runc.v2", "/opt/n", True, MAIN)
    assert seen.handlers == ()
    assert seen.misplaced == (Misplaced(MAIN, schema, section, right, (told,)),)


def test_without_its_file_containerd_has_its_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == Configuration(MAIN, cdi_folders=("/etc/cdi", "/var/run/cdi"))


# What is imported.


@pytest.mark.parametrize(
    ("version", "section", "left"),
    [
        (2, V2, {"nvidia": SECOND}),  # the table of the last file alone
        (3, V3, {"runc": MAIN, "crun": FIRST, "nvidia": SECOND}),
    ],
)
def test_a_later_file_replaces_the_plugins_table_or_is_merged_into_it(
    version: int, section: str, left: dict[str, str], tmp_path: Path
) -> None:
    head = f"version = {version}\n"
    seen = read(
        tmp_path,
        {
            MAIN: head + IMPORTS + default(section, "crun") + handler(section, "runc"),
            FIRST: head + handler(section, "crun", "/opt/c"),
            SECOND: head + handler(section, "nvidia", "/opt/n"),
        },
    )

    assert origins(seen) == left
    assert [one.path for one in seen.files] == [MAIN, FIRST, SECOND]
    assert seen.default == ("runc" if version == 2 else "crun")


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_without_the_plugin_changes_nothing_of_it(version: int, tmp_path: Path) -> None:
    section = V2 if version == 2 else V3
    files = {
        MAIN: f"version = {version}\n{IMPORTS}{handler(section, 'nvidia', '/opt/n')}",
        FIRST: "[debug]\nlevel = 'info'\n",
        SECOND: "",
    }

    assert origins(read(tmp_path, files)) == {"nvidia": MAIN}


def test_of_two_files_with_one_handler_the_later_one_has_it(tmp_path: Path) -> None:
    head = "version = 3\n"
    files = {
        MAIN: head + IMPORTS,
        FIRST: head + handler(V3, "nvidia", "/opt/old"),
        SECOND: head + f'[{V3}.containerd.runtimes.nvidia.options]\nBinaryName = "/opt/new"\n',
    }

    assert read(tmp_path, files).handlers == (Handler("nvidia", "io.containerd.runc.v2", "/opt/new", True, SECOND),)


def test_imports_are_read_breadth_first_and_each_path_once(tmp_path: Path) -> None:
    files = {
        MAIN: f'version = 3\nimports = ["a.toml", "{SECOND}"]\n',
        FIRST: 'imports = ["deeper/c.toml", "config.toml"]\n',
        "/etc/containerd/deeper/c.toml": 'imports = ["../a.toml", "c.toml"]\n',
        SECOND: "",
    }

    seen = read(tmp_path, files)

    assert [one.path for one in seen.files] == [MAIN, FIRST, SECOND, "/etc/containerd/deeper/c.toml"]


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "/etc/containerd/conf.d/*.toml", "con*/*.toml"])
def test_a_pattern_names_files_by_name_relative_to_the_file(pattern: str, tmp_path: Path) -> None:
    folder = "/etc/containerd/conf.d"
    files = {f"{folder}/{name}": "" for name in ("99-nvidia.toml", "10-site.toml", ".hidden.toml", "notes.txt")}

    seen = read(tmp_path, {MAIN: f'version = 2\nimports = ["{pattern}"]\n', **files})

    names = [".hidden.toml", "10-site.toml", "99-nvidia.toml"]
    assert [one.path for one in seen.files] == [MAIN, *(f"{folder}/{name}" for name in names)]


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "*/*/nothing.toml"])
def test_a_pattern_that_names_nothing_is_no_problem(pattern: str, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: f'imports = ["{pattern}"]\n'}).problem is None


def test_an_import_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: IMPORTS, FIRST: ""}) == Problem(SECOND, "imported, and does not exist")


def test_a_drop_in_is_read_as_the_first_files_schema_unless_it_tells_an_older_one(tmp_path: Path) -> None:
    files = {
        MAIN: "version = 3\n" + IMPORTS,
        FIRST: handler(V3, "first", "/opt/n"),
        SECOND: "version = 2\n" + handler(V2, "second", "/opt/n"),
    }
    assert origins(read(tmp_path, files)) == {"first": FIRST, "second": SECOND}


@pytest.mark.parametrize("head", ["", "version = 2\n"])
def test_the_newest_table_counts_in_an_old_file_that_has_no_handlers_of_its_own(head: str, tmp_path: Path) -> None:
    """containerd 2 reads it there, and with containerd 1 nobody could have started anything."""
    assert origins(read(tmp_path, {MAIN: head + handler(V3, "nvidia", "/opt/n")})) == {"nvidia": MAIN}

    own = V2 if head else V1
    both = read(tmp_path, {MAIN: head + handler(own, "runc") + handler(V3, "nvidia", "/opt/n")})
    assert (origins(both), [one.section for one in both.misplaced]) == (
        {"runc": MAIN},
        ["io.containerd.cri.v1.runtime"],
    )


def test_a_drop_in_of_a_newer_schema_than_the_first_file_is_read_as_that_ones(tmp_path: Path) -> None:
    files = {
        MAIN: f"version = 2\nimports = ['a.toml']\n{handler(V2, 'runc')}",
        FIRST: "version = 3\n" + handler(V2, "nvidia", "/opt/n"),
    }

    assert origins(read(tmp_path, files)) == {"nvidia": FIRST}


def test_links_lead_inside_the_root_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    put(tmp_path, {"/opt/site/config.toml": 'imports = ["a.toml"]\n', FIRST: "version = 3\n"})
    (tmp_path / "etc/containerd/config.toml").symlink_to("/opt/site/config.toml")
    assert [one.path for one in read_configuration(tmp_path, MAIN).files] == [MAIN, FIRST]

    (tmp_path / "etc/containerd/a.toml").unlink()
    (tmp_path / "etc/containerd/a.toml").symlink_to("a.toml")
    told = read_configuration(tmp_path, MAIN).problem
    assert told == Problem(FIRST, "can't be read: Too many levels of symbolic links", only_ours=True)


def test_what_lies_outside_of_the_root_is_never_read(tmp_path: Path) -> None:
    put(tmp_path, {"/secret.toml": "version = 3\n"})
    put(tmp_path / "host", {MAIN: 'imports = ["../../../../../secret.toml"]\n'})

    assert read_configuration(tmp_path / "host", MAIN).problem == Problem(
        "/secret.toml", "imported, and does not exist"
    )


# What containerd can't take.


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("version = 2\n[plugins\n", 2, 9),
        ('version = 2\na = "b\n', 2, 7),
        ("a = 1\na = 2\n", 2, 6),
        ("a = 1\n[a]\n", 2, 3),
        ("a = 1\nb =", 2, 4),
        ("a = [1,\n", 1, 8),
    ],
)
def test_what_is_no_toml_is_told_with_its_place(text: str, line: int, column: int, tmp_path: Path) -> None:
    found = problem(tmp_path, {MAIN: text})

    assert (found.file, found.line, found.column, found.only_ours) == (MAIN, line, column, False)
    assert "line" not in found.message
    assert "end of document" not in found.message


def test_what_is_no_utf8_is_told_with_its_place(tmp_path: Path) -> None:
    put(tmp_path, {MAIN: ""})
    (tmp_path / "etc/containerd/config.toml").write_bytes(b"version = 2\n# \xff\n")

    assert read_configuration(tmp_path, MAIN).problem == Problem(MAIN, "no UTF-8", 2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 5", "version is no number from 1 to 4"),
        ("version = -1", "version is no number from 1 to 4"),
        ("version = true", "version is no number from 1 to 4"),
        ("version = 2.0", "version is no number from 1 to 4"),
        ("version = 0xffffffffffffffffffffffffffffffffffffffff", "version is no number from 1 to 4"),
        ("plugins = 1", "plugins is no table"),
        ("[plugins]\ncri = 1", "cri is no table"),
        ("[plugins.cri]\ncontainerd = []", "containerd is no table"),
        ("[plugins.cri.containerd]\nruntimes = 'nvidia'", "runtimes is no table"),
        ("[plugins.cri.containerd.runtimes]\nnvidia = 1", "nvidia is no table"),
        ("[plugins.cri.containerd.runtimes.nvidia.options]\nBinaryName = 1", "BinaryName is no text"),
        ("[plugins.cri.containerd]\ndefault_runtime_name = 1", "default_runtime_name is no text"),
        ("[plugins.cri]\nenable_cdi = 'yes'", "enable_cdi is neither true nor false"),
        ("[plugins.cri]\ncdi_spec_dirs = '/etc/cdi'", "cdi_spec_dirs is no list of paths"),
        ("imports = 'a.toml'", "imports is no list of paths"),
        ("imports = [1]", "imports is no list of paths"),
        ("[grpc]\naddress = 1", "address is no text"),
    ],
)
def test_a_value_of_another_kind_is_a_problem(text: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: text}) == Problem(MAIN, message)


# What only we can't read.


@pytest.mark.parametrize(
    "text",
    [
        "#" * ((1 << 20) + 1),
        f"a = '{'x' * 4096}'",
        f"{'a.' * 129}b = 1",
        f"a = {'[' * 2000}{']' * 2000}",
        f"version = 0x{'f' * 4000}",
        'imports = ["*.toml/\\u0000"]\n[plugins]\nimports = "\\u0000"\n[[imports]]',
    ],
)
def test_a_file_beyond_our_bounds_does_not_crash(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: text}).problem is not None


@pytest.mark.parametrize("text", ["#" * ((1 << 20) + 1), f"a = '{'x' * 4096}'", f"a = {'[' * 2000}{']' * 2000}"])
def test_a_file_beyond_our_bounds_is_not_called_malformed(text: str, tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: text}).only_ours


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_plain_file_is_not_read(kind: str, tmp_path: Path) -> None:
    put(tmp_path, {FIRST: ""})
    file = tmp_path / "etc/containerd/config.toml"
    os.mkfifo(file) if kind == "pipe" else file.mkdir()

    assert read_configuration(tmp_path, MAIN).problem == Problem(MAIN, "can't be read: no plain file", only_ours=True)


def test_more_files_than_any_node_has_are_not_read(tmp_path: Path) -> None:
    files = {f"/etc/containerd/conf.d/{number:03}.toml": "" for number in range(64)}

    told = problem(tmp_path, {MAIN: 'imports = ["conf.d/*"]', **files})

    assert told == Problem("/etc/containerd/conf.d/063.toml", "more than 64 files", only_ours=True)


def test_more_text_than_any_node_has_is_not_read(tmp_path: Path) -> None:
    files = {FIRST: "#\n" * (1 << 18), SECOND: "#\n" * (1 << 18)}

    assert problem(tmp_path, {MAIN: IMPORTS, **files}) == Problem(SECOND, "more than 1 MiB together", only_ours=True)


# Anything at all.

_words = st.sampled_from(
    ["version", "imports", "plugins", '"io.containerd.grpc.v1.cri"', "cri", "containerd", "runtimes"]
)
_values = st.sampled_from(
    ["1", "2", "3", '"x"', "true", "[]", "{}", '["*.toml"]', '["a.toml"]', "{a = {b = 1}}", "nan"]
)
_lines = st.one_of(
    st.builds("{} = {}".format, _words, _values),
    st.lists(_words, min_size=1, max_size=5).map(lambda words: f"[{'.'.join(words)}]"),
    st.text(max_size=20),
)


@given(st.lists(_lines, max_size=12).map("\n".join))
def test_any_text_is_read_or_told_why_not(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        put(root, {MAIN: ""})
        (root / "etc/containerd/config.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
        seen = read_configuration(root, MAIN)

    try:
        tomllib.loads(text)
    except ValueError:
        assert seen.problem is not None
    assert seen.problem is None or seen.handlers == ()
    assert seen.files[0].path == MAIN
