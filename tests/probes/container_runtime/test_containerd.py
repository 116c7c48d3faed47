"""containerd's files, as containerd puts them together."""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.probes.container_runtime.containerd import read_configuration
from healthcheck.probes.container_runtime.facts import ConfigurationProblem, Handler, Misplaced, RuntimeConfiguration
from sim.container_runtime import V2, V3, default, handler

MAIN, FIRST, SECOND = "/etc/containerd/config.toml", "/etc/containerd/a.toml", "/etc/containerd/b.toml"
V1 = "plugins.cri"
IMPORTS = 'imports = ["a.toml", "b.toml"]\n'


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)


def read(root: Path, files: dict[str, str], version: str = "") -> RuntimeConfiguration:
    """Read as the containerd of that version does, or one of unknown version."""
    put(root, files)
    return read_configuration(root, MAIN, version)


def problem(root: Path, files: dict[str, str]) -> ConfigurationProblem:
    found = read(root, files).problem
    assert found is not None
    return found


def origins(seen: RuntimeConfiguration) -> dict[str, str]:
    return {handler.name: handler.file for handler in seen.handlers}


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

    line = 4 if head else 3
    assert seen.handlers == (Handler("nvidia", "io.containerd.runc.v2", "/opt/n", True, MAIN, line),)
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
    expected = Handler("nvidia", "io.containerd.runc.v2", "/opt/n", True, MAIN, 2 if head else 1)
    assert seen.handlers == ()
    assert seen.misplaced == (Misplaced(MAIN, schema, section, right, (expected,), schema),)


@pytest.mark.parametrize(
    ("version", "keys", "binary"),
    [
        (2, ["BinaryName"], "/BinaryName"),
        (2, ["binaryName"], "/binaryName"),
        (2, ["binaryname"], "/binaryname"),
        (2, ["BINARYNAME"], "/BINARYNAME"),
        (2, ["Binaryname"], ""),
        (2, ["binary_name"], ""),
        (2, ["binaryName", "BinaryName"], "/BinaryName"),
        (3, ["binaryName"], "/binaryName"),
        (3, ["Binaryname"], "/Binaryname"),
        (3, ["binary_name"], ""),
        (3, ["binaryName", "BinaryName"], "/binaryName"),
    ],
)
def test_an_option_may_be_spelt_as_the_releases_toml_library_takes_it(
    version: int, keys: list[str], binary: str, tmp_path: Path
) -> None:
    """go-toml 1.9.5, as 1.7 has it, and go-toml 2.2, as 2.2 has it, were asked."""
    table = f"{V2 if version == 2 else V3}.containerd.runtimes.nvidia.options"
    options = "".join(f"{key} = '/{key}'\n" for key in keys)

    (seen,) = read(tmp_path, {MAIN: f"version = {version}\n[{table}]\n{options}systemdCgroup = true\n"}).handlers

    assert (seen.binary, seen.systemd_cgroup) == (binary, True)


@pytest.mark.parametrize(
    ("head", "section", "plugin"),
    [("", V1, "linux"), ("version = 2\n", V2, '"io.containerd.runtime.v1.linux"')],
)
@pytest.mark.parametrize(
    ("of_handler", "binary"),
    [
        ("", "/opt/shims"),
        ('runtime_engine = "/opt/own"', "/opt/own"),
        ('options = {Runtime = "/opt/own"}', "/opt/own"),
        ("options = {}", "/opt/shims"),
    ],
)
def test_a_handler_of_the_oldest_shim_without_a_program_has_the_shims(
    head: str, section: str, plugin: str, of_handler: str, binary: str, tmp_path: Path
) -> None:
    runtime = f'[{section}.containerd.runtimes.n]\nruntime_type = "io.containerd.runtime.v1.linux"\n{of_handler}\n'
    shim = f'[plugins.{plugin}]\nruntime = "/opt/shims"\n'

    assert [handler.binary for handler in read(tmp_path, {MAIN: head + runtime + shim}).handlers] == [binary]
    assert (
        problem(tmp_path, {MAIN: f"{head}{runtime}[plugins.{plugin}]\nruntime = 1\n"}).message
        == "runtime is not a string"
    )


@pytest.mark.parametrize(
    ("kind", "options", "binary", "ignored"),
    [
        ("io.containerd.runtime.v1.linux", "{BinaryName = '/n'}", "", "/n"),
        ("io.containerd.runtime.v1.linux", "{Runtime = '/r', binaryName = '/n'}", "/r", "/n"),
        ("io.containerd.runtime.v1.linux", "{BinaryName = 1}", "", ""),
        ("io.containerd.runc.v2", "{BinaryName = '/n'}", "/n", ""),
    ],
)
def test_the_binary_name_that_the_oldest_shim_does_not_read_is_kept_apart(
    kind: str, options: str, binary: str, ignored: str, tmp_path: Path
) -> None:
    text = f"version = 2\n[{V2}.containerd.runtimes.n]\nruntime_type = '{kind}'\noptions = {options}\n"

    (seen,) = read(tmp_path, {MAIN: text}).handlers

    assert (seen.binary, seen.ignored_binary) == (binary, ignored)


def test_without_its_file_containerd_has_its_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == RuntimeConfiguration(
        MAIN, cdi_folders=("/etc/cdi", "/var/run/cdi"), generation="1.7", built_in=("runc",)
    )


# Imports.


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
    assert [file.path for file in seen.files] == [MAIN, FIRST, SECOND]
    assert seen.default == ("runc" if version == 2 else "crun")


REGISTRY = f"[{V2}.registry]\nconfig_path = '/etc/containerd/certs.d'\n"
NVIDIA, OTHER = handler(V2, "nvidia", "/opt/n"), handler(V2, "nvidia", "/opt/other")


@pytest.mark.parametrize(
    ("version", "files", "replaced", "by"),
    [
        ("", {MAIN: NVIDIA, FIRST: REGISTRY}, {"nvidia": MAIN}, FIRST),
        (
            "1.7.28",
            {MAIN: handler(V2, "runc"), FIRST: NVIDIA, SECOND: REGISTRY},
            {"runc": MAIN, "nvidia": FIRST},
            SECOND,
        ),
        # A file without the table takes nothing away, and neither does one that has the handler too.
        ("1.7.28", {MAIN: NVIDIA, FIRST: ""}, {}, ""),
        ("1.7.28", {MAIN: NVIDIA, FIRST: OTHER}, {}, ""),
        ("2.1.4", {MAIN: NVIDIA, FIRST: REGISTRY}, {}, ""),
    ],
)
def test_a_replaced_table_is_reported_with_the_later_file(
    version: str, files: dict[str, str], replaced: dict[str, str], by: str, tmp_path: Path
) -> None:
    empty = {FIRST: "", SECOND: ""}
    fields = {path: "version = 2\n" + text for path, text in files.items()}

    seen = read(tmp_path, {**empty, **fields, MAIN: IMPORTS + fields[MAIN]}, version)

    assert ({one.name: one.file for one in seen.replaced}, seen.replaced_by) == (replaced, by)


@pytest.mark.parametrize(
    ("version", "of_main", "of_drop_in", "file"),
    [
        (3, default(V3, "nvidia"), "", MAIN),
        (3, default(V3, "runc"), default(V3, "nvidia"), FIRST),
        (2, default(V2, "runc"), default(V2, "nvidia"), FIRST),
        # Its table is replaced as a whole, and containerd's own default is not named.
        (2, default(V2, "nvidia"), f"[{V2}]\nenable_cdi = true\n", ""),
    ],
)
def test_the_file_with_the_default_is_reported(
    version: int, of_main: str, of_drop_in: str, file: str, tmp_path: Path
) -> None:
    head = f"version = {version}\n"
    seen = read(tmp_path, {MAIN: f'{head}imports = ["a.toml"]\n{of_main}', FIRST: head + of_drop_in})

    assert seen.default_in == file


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

    assert read(tmp_path, files).handlers == (Handler("nvidia", "io.containerd.runc.v2", "/opt/new", True, SECOND, 2),)


def test_imports_are_read_breadth_first_and_each_path_once(tmp_path: Path) -> None:
    files = {
        MAIN: f'version = 3\nimports = ["a.toml", "{SECOND}"]\n',
        FIRST: 'imports = ["deeper/c.toml", "config.toml"]\n',
        "/etc/containerd/deeper/c.toml": 'imports = ["../a.toml", "c.toml"]\n',
        SECOND: "",
    }

    seen = read(tmp_path, files)

    assert [file.path for file in seen.files] == [MAIN, FIRST, SECOND, "/etc/containerd/deeper/c.toml"]


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "/etc/containerd/conf.d/*.toml", "con*/*.toml"])
def test_a_pattern_names_files_by_name_relative_to_the_file(pattern: str, tmp_path: Path) -> None:
    folder = "/etc/containerd/conf.d"
    files = {f"{folder}/{name}": "" for name in ("99-nvidia.toml", "10-site.toml", ".hidden.toml", "notes.txt")}

    seen = read(tmp_path, {MAIN: f'version = 2\nimports = ["{pattern}"]\n', **files})

    names = [".hidden.toml", "10-site.toml", "99-nvidia.toml"]
    assert [file.path for file in seen.files] == [MAIN, *(f"{folder}/{name}" for name in names)]


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "*/*/nothing.toml"])
def test_a_pattern_that_names_nothing_is_no_problem(pattern: str, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: f'imports = ["{pattern}"]\n'}).problem is None


def test_an_import_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: IMPORTS, FIRST: ""}) == ConfigurationProblem(SECOND, "imported, but does not exist")


@pytest.mark.parametrize(("there", "only_ours"), [({}, True), ({"/run/k0s/other.toml": ""}, False)])
def test_an_import_from_a_folder_that_was_not_saved_is_not_missing(
    there: dict[str, str], only_ours: bool, tmp_path: Path
) -> None:
    configuration_problem = problem(tmp_path, {MAIN: 'imports = ["/run/k0s/containerd-cri.toml"]\n', **there})

    message = "/run is empty or missing here" if only_ours else "does not exist"
    assert configuration_problem == ConfigurationProblem(
        "/run/k0s/containerd-cri.toml", f"imported, but {message}", only_ours=only_ours
    )


@pytest.mark.parametrize(
    ("version", "left", "lost"),
    [
        ("", {"first": FIRST}, {"second": SECOND}),
        ("2.1.4", {"first": FIRST}, {"second": SECOND}),
        ("2.3.0", {"first": FIRST, "second": SECOND}, {}),
    ],
)
def test_an_older_drop_in_below_a_newer_file_is_lost_before_containerd_2_3(
    version: str, left: dict[str, str], lost: dict[str, str], tmp_path: Path
) -> None:
    files = {
        MAIN: "version = 3\n" + IMPORTS,
        FIRST: handler(V3, "first", "/opt/n"),
        SECOND: "version = 2\n" + handler(V2, "second", "/opt/n"),
    }

    seen = read(tmp_path, files, version)

    assert origins(seen) == left
    assert {one.name: place.file for place in seen.misplaced for one in place.handlers} == lost
    # Nothing is wrong with its table: it is the other file that keeps it from being read.
    assert {(misplaced.right_schema, misplaced.handler_file, misplaced.read_from) for misplaced in seen.misplaced} == (
        {(3, FIRST, "2.3")} if lost else set()
    )


@pytest.mark.parametrize(
    ("version", "head", "written", "of_drop_in", "result"),
    [
        # Only renamed, or not taken over at all: the last file's version counts.
        ("2.1.4", "version = 1\n", V1, "version = 3\n", (3, "", "2.3")),
        ("2.1.4", "version = 2\n", V2, "version = 3\n" + handler(V3, "runc"), (3, FIRST, "2.3")),
        ("1.7.28", "version = 2\n", V2, "version = 1\n" + handler(V1, "runc"), (1, FIRST, "")),
        # In one file with the newer table no release takes it over.
        ("2.4.2", "version = 2\n" + handler(V3, "runc"), V2, "", (3, MAIN, "")),
        ("2.1.4", "version = 2\n" + handler(V3, "runc"), V2, "", (3, MAIN, "")),
    ],
)
def test_the_reason_for_an_unread_table_is_reported(
    version: str, head: str, written: str, of_drop_in: str, result: tuple[int, str, str], tmp_path: Path
) -> None:
    files = {MAIN: 'imports = ["a.toml"]\n' + head + handler(written, "nvidia", "/opt/n"), FIRST: of_drop_in}

    (place,) = read(tmp_path, files, version).misplaced

    assert (place.file, (place.right_schema, place.handler_file, place.read_from)) == (MAIN, result)


@pytest.mark.parametrize("head", ["", "version = 2\n"])
def test_an_old_file_with_the_newest_table_alone_is_taken_for_one_of_containerd_2(head: str, tmp_path: Path) -> None:
    """With containerd 1 no container could have started."""
    seen = read(tmp_path, {MAIN: head + handler(V3, "nvidia", "/opt/n")})
    assert (origins(seen), seen.generation, seen.version) == ({"nvidia": MAIN}, "2.2", "")

    own = V2 if head else V1
    both = read(tmp_path, {MAIN: head + handler(own, "runc") + handler(V3, "nvidia", "/opt/n")})
    assert (origins(both), both.generation, [misplaced.section for misplaced in both.misplaced]) == (
        {"runc": MAIN},
        "1.7",
        ["io.containerd.cri.v1.runtime"],
    )


@pytest.mark.parametrize(
    ("version", "generation", "left"),
    [
        ("1.6.20", "1.6", {"runc": MAIN}),
        ("2.1.4", "2.1", {"nvidia": FIRST}),
        ("2.4.2", "2.4", {"runc": MAIN, "nvidia": FIRST}),
    ],
)
def test_what_a_newer_drop_in_leaves_of_an_older_file_is_the_releases_own_affair(
    version: str, generation: str, left: dict[str, str], tmp_path: Path
) -> None:
    files = {
        MAIN: f"version = 2\nimports = ['a.toml']\n{handler(V2, 'runc')}",
        FIRST: "version = 3\n" + handler(V3, "nvidia", "/opt/n"),
    }

    seen = read(tmp_path, files, version)

    assert (seen.version, seen.generation, origins(seen)) == (version, generation, left)


@pytest.mark.parametrize(
    ("version", "cdi"), [("1.6.36", False), ("1.7.28", False), ("2.0.0", True), ("2.3.9", True), ("2.4.0", True)]
)
def test_cdi_is_on_from_containerd_2_on(version: str, cdi: bool, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: "version = 2\n"}, version).cdi == cdi


@pytest.mark.parametrize(
    ("version", "cdi"), [("1.6.36", False), ("1.7.28", True), ("2.0.0", True), ("2.3.9", True), ("2.4.0", True)]
)
def test_what_the_file_says_of_cdi_holds_where_that_release_reads_it(version: str, cdi: bool, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: f"version = 2\n[{V2}]\nenable_cdi = true\n"}, version).cdi == cdi
    off = read(tmp_path, {MAIN: f"version = 2\n[{V2}]\nenable_cdi = false\n"}, version)
    assert off.cdi == (version == "2.4.0")


def test_drop_ins_that_nobody_imports_are_named(tmp_path: Path) -> None:
    folder = "/etc/containerd"
    files = {
        MAIN: "version = 2\nimports = ['conf.d/*.toml']\n",
        f"{folder}/conf.d/read.toml": "",
        f"{folder}/config.d/site.toml": "",
        f"{folder}/config.d/notes.txt": "",
        f"{folder}/config.d/nvidia.toml": "version = 2\n" + handler(V2, "nvidia", "/opt/n") + handler(V3, "other", ""),
        f"{folder}/config.d/odd.toml": "plugins = 1",
        f"{folder}/config.d/worse.toml": "[",
    }
    put(tmp_path, files)
    (tmp_path / "etc/containerd/config.d/same.toml").symlink_to("../conf.d/read.toml")

    seen = read_configuration(tmp_path, MAIN)

    unread = [f"{folder}/config.d/{name}.toml" for name in ("nvidia", "odd", "site", "worse")]
    assert [file.path for file in seen.unread] == unread
    assert [(one.name, one.binary, one.file, one.line) for one in seen.unread_handlers] == [
        ("nvidia", "/opt/n", unread[0], 2),
        ("other", "", unread[0], 7),
    ]


@pytest.mark.parametrize("version", ["2.1.4", "2.4.2"])
def test_containerd_reads_no_drop_in_folder_by_itself(version: str, tmp_path: Path) -> None:
    """The import of conf.d that 2.2 brought stands in `containerd config default`, for a file to be made from."""
    put(tmp_path, {"/etc/containerd/conf.d/99-nvidia.toml": "version = 3\n" + handler(V3, "nvidia", "/opt/n")})

    for files in ({}, {MAIN: "version = 3\n"}):
        seen = read(tmp_path, files, version)
        assert (seen.handlers, [file.path for file in seen.unread]) == ((), ["/etc/containerd/conf.d/99-nvidia.toml"])


# Where a handler is defined.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"\n\n[{V2}.containerd.runtimes.nvidia]\n", 3),
        ("[ plugins . 'io.containerd.grpc.v1.cri' . containerd . runtimes . \"nvidia\" ] # NVIDIA's\r\n", 1),
        (f"#\n[{V2}.containerd.runtimes.nvidia.options]\n[{V2}.containerd.runtimes.nvidia]\n", 3),
        (f"#\n[{V2}.containerd.runtimes.nvidia.options]\n", 2),
        (f'a = """\n[{V2}.containerd.runtimes.runc]\n"""\n[{V2}.containerd.runtimes.nvidia]\n', 4),
        (f"a = [\n['x'],\n[]]\n[{V2}.containerd.runtimes.nvidia]\n", 4),
        (f"[{V2}.containerd.runtimes]\nnvidia = {{}}\n", 0),
        (f"{V2}.containerd.runtimes.nvidia.runtime_type = 'x'\n", 0),
    ],
)
def test_a_handlers_line_is_that_of_its_tables_header(text: str, line: int, tmp_path: Path) -> None:
    (nvidia,) = read(tmp_path, {MAIN: text}, "2.4.2").handlers

    assert (nvidia.name, nvidia.line) == ("nvidia", line)


def test_links_lead_inside_the_root_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    put(tmp_path, {"/opt/site/config.toml": 'imports = ["a.toml"]\n', FIRST: "version = 3\n"})
    (tmp_path / "etc/containerd/config.toml").symlink_to("/opt/site/config.toml")
    assert [file.path for file in read_configuration(tmp_path, MAIN).files] == [MAIN, FIRST]

    (tmp_path / "etc/containerd/a.toml").unlink()
    (tmp_path / "etc/containerd/a.toml").symlink_to("a.toml")
    problem = read_configuration(tmp_path, MAIN).problem
    assert problem == ConfigurationProblem(FIRST, "can't be read: Too many levels of symbolic links", only_ours=True)


def test_what_lies_outside_of_the_root_is_never_read(tmp_path: Path) -> None:
    put(tmp_path, {"/secret.toml": "version = 3\n"})
    put(tmp_path / "host", {MAIN: 'imports = ["../../../../../secret.toml"]\n'})

    assert read_configuration(tmp_path / "host", MAIN).problem == ConfigurationProblem(
        "/secret.toml", "imported, but does not exist"
    )


# Files that containerd rejects.


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
def test_invalid_toml_is_reported_with_its_position(text: str, line: int, column: int, tmp_path: Path) -> None:
    found = problem(tmp_path, {MAIN: text})

    assert (found.file, found.line, found.column, found.only_ours) == (MAIN, line, column, False)
    assert "line" not in found.message
    assert "end of document" not in found.message


def test_invalid_utf8_is_reported_with_its_position(tmp_path: Path) -> None:
    put(tmp_path, {MAIN: ""})
    (tmp_path / "etc/containerd/config.toml").write_bytes(b"version = 2\n# \xff\n")

    assert read_configuration(tmp_path, MAIN).problem == ConfigurationProblem(MAIN, "no UTF-8", 2, 3)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("version = 5", 1, "version is 5, but this containerd reads no version above 4"),
        ("version = -1", 1, "version is not a number from 1 on"),
        ("version = true", 1, "version is not a number"),
        ("version = 2.0", 1, "version is not a number"),
        ("version = 0xffffffffffffffffffffffffffffffffffffffff", 1, "version is not a number from 1 on"),
        ("plugins = 1", 1, "plugins is not a table"),
        ("[plugins]\ncri = 1", 2, "cri is not a table"),
        ("[plugins.cri]\ncontainerd = []", 2, "containerd is not a table"),
        ("[plugins.cri.containerd]\nruntimes = 'nvidia'", 2, "runtimes is not a table"),
        ("[plugins.cri.containerd.runtimes]\nrunc = {}\nnvidia = 1", 3, "nvidia is not a table"),
        ("[plugins.cri.containerd.runtimes.nvidia.options]\nBinaryName = 1", 2, "BinaryName is not a string"),
        ("plugins.cri.containerd.runtimes.nvidia.options.BinaryName = 1", 0, "BinaryName is not a string"),
        (
            "[plugins.cri.containerd.runtimes.nvidia.options]\nSystemdCgroup = 1",
            2,
            "SystemdCgroup is not true or false",
        ),
        ("[plugins.cri.containerd]\n\n'default_runtime_name' = 1", 3, "default_runtime_name is not a string"),
        ("[plugins.cri]\nenable_cdi = 'yes'", 2, "enable_cdi is not true or false"),
        ("[plugins.cri]\ncdi_spec_dirs = '/etc/cdi'", 2, "cdi_spec_dirs is not a list of strings"),
        ("\nimports = 'a.toml'", 2, "imports is not a list of strings"),
        ("imports = [\n  1]", 1, "imports is not a list of strings"),
        ("disabled_plugins = 'cri'", 1, "disabled_plugins is not a list of strings"),
        ("[grpc]\naddress = 1", 2, "address is not a string"),
        ("[plugins.cri]\nsystemd_cgroup = true", 2, "systemd_cgroup works with io.containerd.runtime.v1.linux only"),
    ],
)
def test_a_value_of_another_kind_is_a_problem(text: str, line: int, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: text}) == ConfigurationProblem(MAIN, message, line)


def test_a_value_of_another_type_is_reported_with_its_file(tmp_path: Path) -> None:
    files = {
        MAIN: "version = 3\n" + IMPORTS + handler(V3, "nvidia", "/opt/n"),
        FIRST: f"version = 3\n[{V3}.containerd.runtimes.nvidia]\nruntime_type = 1\n",
        SECOND: "version = 3\n",
    }

    assert problem(tmp_path, files) == ConfigurationProblem(FIRST, "runtime_type is not a string", 3)


@pytest.mark.parametrize(
    ("version", "head", "newest"),
    [
        ("1.7.17", "version = 3", 2),
        ("2.2.9", "version = 4", 3),
        ("2.3.0", "version = 5", 4),
    ],
)
def test_a_schema_that_the_release_does_not_know_is_refused(
    version: str, head: str, newest: int, tmp_path: Path
) -> None:
    (found,) = [read(tmp_path, {MAIN: head}, version).problem]

    assert found == ConfigurationProblem(
        MAIN, f"version is {newest + 1}, but this containerd reads no version above {newest}", 1
    )


@pytest.mark.parametrize("version", ["1.6.20~ds1", "1.6.31"])
def test_containerd_1_once_took_any_newer_schema_for_its_own(version: str, tmp_path: Path) -> None:
    seen = read(
        tmp_path, {MAIN: "version = 3\n" + handler(V2, "nvidia", "/opt/n") + handler(V3, "lost", "/opt/n")}, version
    )

    assert (seen.problem, origins(seen)) == (None, {"nvidia": MAIN})
    assert [misplaced.section for misplaced in seen.misplaced] == ["io.containerd.cri.v1.runtime"]


# Docker's own file switches the CRI plugin off, by its short name.


@pytest.mark.parametrize("version", ["", "1.7.28", "2.2.9", "2.4.2"])
def test_a_disabled_plugin_is_reported_with_its_file(version: str, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: 'disabled_plugins = ["cri"]\n'}, version).disabled_in == MAIN

    files = {MAIN: "version = 2\nimports = ['a.toml']\n", FIRST: 'disabled_plugins = ["io.containerd.grpc.v1.cri"]'}
    assert read(tmp_path, files, version).disabled_in == FIRST


def test_a_drop_in_of_schema_2_makes_the_short_name_an_error_for_containerd_1(tmp_path: Path) -> None:
    files = {MAIN: 'imports = ["a.toml"]\ndisabled_plugins = ["cri"]\n', FIRST: "version = 2\n"}

    problem = ConfigurationProblem(MAIN, "disabled_plugins: 'cri' is not the full name of a plugin", 2)
    assert read(tmp_path, files, "1.7.28").problem == problem
    assert read(tmp_path, files, "2.4.2").disabled_in == MAIN
    seen = read(tmp_path, files)
    # A release of unknown version is not reported as rejecting it.
    assert (seen.disabled_in, seen.problem) == (MAIN, None)


# Files that only our parser rejects.


@pytest.mark.parametrize(
    "text",
    [
        "#" * ((1 << 20) + 1),
        f"a = '{'x' * 4096}'",
        f"{'a.' * 1025}b = 1",
        "\n".join(f"[a{number}.{'a.' * 100}b]" for number in range(200)),
        "\n".join(f"[plugins.cri.containerd.runtimes.a{number}]" for number in range(257)),
        f"a = {'[' * 2000}{']' * 2000}",
        f"version = 0x{'f' * 4000}",
        'imports = ["*.toml/\\u0000"]\n[plugins]\nimports = "\\u0000"\n[[imports]]',
    ],
)
def test_a_file_beyond_our_bounds_does_not_crash(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, {MAIN: text}, "2.4.2").problem is not None


@pytest.mark.parametrize("text", ["#" * ((1 << 20) + 1), f"a = '{'x' * 4096}'", f"a = {'[' * 2000}{']' * 2000}"])
def test_a_file_beyond_our_bounds_is_not_called_malformed(text: str, tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: text}).only_ours


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_plain_file_is_not_read(kind: str, tmp_path: Path) -> None:
    put(tmp_path, {FIRST: ""})
    file = tmp_path / "etc/containerd/config.toml"
    os.mkfifo(file) if kind == "pipe" else file.mkdir()

    assert read_configuration(tmp_path, MAIN).problem == ConfigurationProblem(
        MAIN, "can't be read: not a regular file", only_ours=True
    )


def test_more_files_than_any_node_has_are_not_read(tmp_path: Path) -> None:
    files = {f"/etc/containerd/conf.d/{number:03}.toml": "" for number in range(64)}

    configuration_problem = problem(tmp_path, {MAIN: 'imports = ["conf.d/*"]', **files})

    assert configuration_problem == ConfigurationProblem(
        "/etc/containerd/conf.d/063.toml", "more than 64 files", only_ours=True
    )


def test_more_text_than_any_node_has_is_not_read(tmp_path: Path) -> None:
    files = {FIRST: "#\n" * (1 << 18), SECOND: "#\n" * (1 << 18)}

    assert problem(tmp_path, {MAIN: IMPORTS, **files}) == ConfigurationProblem(
        SECOND, "more than 1 MiB together", only_ours=True
    )


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
def test_any_text_is_read_or_rejected_with_a_reason(text: str) -> None:
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
