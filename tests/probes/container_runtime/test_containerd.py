"""containerd's files, as containerd puts them together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.probes.container_runtime.containerd import read_configuration
from healthcheck.probes.container_runtime.facts import ConfigurationProblem, Handler, Misplaced, RuntimeConfiguration
from sim.container_runtime import V2, V3, default, handler
from tests.fuzz.container_runtime import any_tree_is_read, any_trees
from tests.fuzz.damage import byte_damages

MAIN, FIRST, SECOND = "/etc/containerd/config.toml", "/etc/containerd/a.toml", "/etc/containerd/b.toml"
FOLDER = "/etc/containerd"
V1 = "plugins.cri"
SHORT, OLD, NEW = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)


def read(root: Path, files: dict[str, str], version: str = "") -> RuntimeConfiguration:
    """Read as the containerd of that version does, or one of unknown version."""
    put(root, files)
    return read_configuration(root, MAIN, version)


def problem(root: Path, files: dict[str, str], version: str = "") -> ConfigurationProblem:
    found = read(root, files, version).problem
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("schema", "section", "cdi"), [(1, V1, False), (2, V2, False), (3, V3, True), (4, V3, True), (0, V1, False)]
)
def test_each_schema_has_its_handlers_under_its_own_plugin(
    schema: int, section: str, cdi: bool, tmp_path: Path
) -> None:
    head = f"version = {schema}\n" if schema else "#\n"
    seen = read(tmp_path, {MAIN: head + default(section, "nvidia") + handler(section, "nvidia", "/opt/n")})

    assert [(one.name, one.binary, one.systemd_cgroup, one.line) for one in seen.handlers] == [
        ("nvidia", "/opt/n", True, 4)
    ]
    assert (seen.schema, seen.default, seen.cdi, seen.misplaced, seen.problem) == (
        *(schema or 1, "nvidia", cdi),
        *((), None),
    )


@pytest.mark.parametrize(
    ("schema", "written", "section", "right"),
    [
        (1, V2, OLD, SHORT),
        (2, V1, SHORT, OLD),
        (3, V1, SHORT, NEW),
        (3, V2, OLD, NEW),
        (4, V2, OLD, NEW),
    ],
)
def test_handlers_under_another_plugin_are_none(
    schema: int, written: str, section: str, right: str, tmp_path: Path
) -> None:
    seen = read(tmp_path, {MAIN: f"version = {schema}\n" + handler(written, "nvidia", "/opt/n")})

    expected = Handler("nvidia", "io.containerd.runc.v2", "/opt/n", True, MAIN, 2)
    assert seen.handlers == ()
    assert seen.misplaced == (Misplaced(MAIN, schema, section, right, (expected,), schema),)


@pytest.mark.parametrize(
    ("options", "binary", "ignored", "systemd"),
    [
        ("runtime_type = 'io.containerd.runtime.v1.linux'\noptions.BinaryName = '/n'", "", "/n", False),
        ("runtime_type = 'io.containerd.runtime.v1.linux'\noptions.Runtime = '/r'", "/r", "", False),
        ("runtime_type = 'io.containerd.runtime.v1.linux'\nruntime_engine = '/r'", "/r", "", None),
        ("runtime_type = 'io.containerd.runc.v2'\noptions.BinaryName = '/n'", "/n", "", False),
        ("options.SystemdCgroup = true", "", "", True),
        ("runtime_type = 'io.containerd.kata.v2'\noptions.ConfigPath = '/k'", "", "", None),
        ("", "", "", None),
    ],
)
def test_a_handlers_program_and_cgroup_driver(
    options: str, binary: str, ignored: str, systemd: bool | None, tmp_path: Path
) -> None:
    (seen,) = read(tmp_path, {MAIN: f"version = 2\n[{V2}.containerd.runtimes.n]\n{options}\n"}).handlers

    assert (seen.binary, seen.ignored_binary, seen.systemd_cgroup) == (binary, ignored, systemd)


def test_without_its_file_containerd_has_its_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == RuntimeConfiguration(
        MAIN, cdi_folders=("/etc/cdi", "/var/run/cdi"), generation="1.7", built_in=("runc",)
    )


# Several files.


def of(schema: int, *names: str, rest: str = "") -> str:
    """Return a file of that schema with these handlers."""
    head = f"version = {schema}\n" if schema else ""
    section = {0: V1, 1: V1, 2: V2}.get(schema, V3)
    return head + rest + "".join(handler(section, name, "/opt/n") for name in names)


REGISTRY = f"[{V2}.registry]\nconfig_path = '/etc/containerd/certs.d'\n"
MERGES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "1.x keeps the last file's table": (
        "",
        [of(2, "runc"), of(2, "crun"), of(2, "nvidia")],
        {"handlers": {"nvidia": SECOND}, "replaced": {"runc": MAIN, "crun": FIRST}, "replaced_by": SECOND},
    ),
    "also if it has no handler": (
        "1.7.28",
        [of(2, "runc"), of(2, "nvidia"), of(2, rest=REGISTRY)],
        {"handlers": {}, "replaced": {"runc": MAIN, "nvidia": FIRST}, "replaced_by": SECOND},
    ),
    "a file without the table takes nothing away": ("1.7.28", [of(2, "nvidia"), ""], {"handlers": {"nvidia": MAIN}}),
    "nor does one with the handler": ("1.7.28", [of(2, "nvidia"), of(2, "nvidia")], {"handlers": {"nvidia": FIRST}}),
    "2.x adds them up": (
        "",
        [of(3, "runc"), of(3, "crun"), of(3, "nvidia")],
        {"handlers": {"runc": MAIN, "crun": FIRST, "nvidia": SECOND}},
    ),
    "those of schema 2, too": ("2.1.4", [of(2, "nvidia"), of(2, rest=REGISTRY)], {"handlers": {"nvidia": MAIN}}),
    "2.2 loses older ones below newer ones": (
        "2.2.0",
        [of(3), of(3, "first"), of(2, "second")],
        {"handlers": {"first": FIRST}, "misplaced": {"second": (SECOND, 3, FIRST, "2.3")}},
    ),
    "2.2 is assumed for such files": (
        "",
        [of(3), of(3, "first"), of(2, "second")],
        {"handlers": {"first": FIRST}, "misplaced": {"second": (SECOND, 3, FIRST, "2.3")}},
    ),
    "2.3 keeps them": (
        "2.3.0",
        [of(3), of(3, "first"), of(2, "second")],
        {"handlers": {"first": FIRST, "second": SECOND}},
    ),
    "2.2 with a newer drop-in": (
        "2.1.4",
        [of(2, "runc"), of(3, "nvidia")],
        {"handlers": {"nvidia": FIRST}, "misplaced": {"runc": (MAIN, 3, FIRST, "2.3")}},
    ),
    "2.4 with a newer drop-in": (
        "2.4.2",
        [of(2, "runc"), of(3, "nvidia")],
        {"handlers": {"runc": MAIN, "nvidia": FIRST}},
    ),
    "2.2 reads no schema 1": (
        "2.1.4",
        [of(1, "nvidia"), of(3)],
        {"handlers": {}, "misplaced": {"nvidia": (MAIN, 3, "", "2.3")}},
    ),
    "in one file with the newer table no release reads the older one": (
        "2.4.2",
        [of(2, "nvidia") + handler(V3, "runc")],
        {"handlers": {"runc": MAIN}, "misplaced": {"nvidia": (MAIN, 3, MAIN, "")}},
    ),
    "1.6 reads schema 3 as schema 2": (
        "1.6.20~ds1",
        [of(3, "lost") + handler(V2, "nvidia")],
        {"handlers": {"nvidia": MAIN}, "misplaced": {"lost": (MAIN, 2, MAIN, "")}},
    ),
    "an old file with the newest table alone is one of containerd 2": (
        "",
        ["version = 2\n" + handler(V3, "nvidia")],
        {"handlers": {"nvidia": MAIN}, "generation": "2.2"},
    ),
}


@pytest.mark.parametrize(("version", "texts", "expected"), MERGES.values(), ids=MERGES)
def test_several_files_are_merged_by_the_rules_of_the_release(
    version: str, texts: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    imports = f"imports = {['a.toml', 'b.toml'][: len(texts) - 1]}\n"
    seen = read(tmp_path, dict(zip([MAIN, FIRST, SECOND], [imports + texts[0], *texts[1:]], strict=False)), version)

    lost = {
        one.name: (place.file, place.right_schema, place.handler_file, place.read_from)
        for place in seen.misplaced
        for one in place.handlers
    }
    assert ({one.name: one.file for one in seen.handlers}, lost) == (
        expected["handlers"],
        expected.get("misplaced", {}),
    )
    assert {one.name: one.file for one in seen.replaced} == expected.get("replaced", {})
    assert seen.replaced_by == expected.get("replaced_by", "")
    assert seen.generation == expected.get("generation", seen.generation)


@pytest.mark.parametrize(
    ("schema", "of_main", "of_drop_in", "expected"),
    [
        (3, default(V3, "nvidia"), "", ("nvidia", MAIN)),
        (3, default(V3, "runc"), default(V3, "nvidia"), ("nvidia", FIRST)),
        (2, default(V2, "runc"), default(V2, "nvidia"), ("nvidia", FIRST)),
        # Its table is replaced as a whole, and containerd's own default is not named.
        (2, default(V2, "nvidia"), f"[{V2}]\nenable_cdi = true\n", ("runc", "")),
    ],
)
def test_the_file_with_the_default_is_reported(
    schema: int, of_main: str, of_drop_in: str, expected: tuple[str, str], tmp_path: Path
) -> None:
    head = f"version = {schema}\n"
    seen = read(tmp_path, {MAIN: f'{head}imports = ["a.toml"]\n{of_main}', FIRST: head + of_drop_in})

    assert (seen.default, seen.default_in) == expected


def test_of_two_files_with_one_handler_the_later_one_has_it(tmp_path: Path) -> None:
    part = f'[{V3}.containerd.runtimes.nvidia.options]\nBinaryName = "/opt/new"\n'
    seen = read(tmp_path, {MAIN: 'imports = ["a.toml"]\n' + of(3, "nvidia"), FIRST: f"version = 3\n{part}"})

    assert seen.handlers == (Handler("nvidia", "io.containerd.runc.v2", "/opt/new", True, FIRST, 2),)


IMPORTS = {
    "breadth first, each once": (
        {
            MAIN: f'version = 3\nimports = ["a.toml", "{SECOND}"]\n',
            FIRST: 'imports = ["deeper/c.toml", "config.toml"]\n',
            f"{FOLDER}/deeper/c.toml": 'imports = ["../a.toml", "c.toml"]\n',
            SECOND: "",
        },
        [MAIN, FIRST, SECOND, f"{FOLDER}/deeper/c.toml"],
    ),
    **{
        pattern: (
            {
                MAIN: f'version = 2\nimports = ["{pattern}"]\n',
                **{f"{FOLDER}/conf.d/{name}": "" for name in ("99-nvidia.toml", "10-site.toml", "notes.txt")},
            },
            [MAIN, f"{FOLDER}/conf.d/10-site.toml", f"{FOLDER}/conf.d/99-nvidia.toml"],
        )
        for pattern in ("conf.d/*.toml", f"{FOLDER}/conf.d/*.toml")
    },
    "a pattern without a match": ({MAIN: 'imports = ["conf.d/*.toml"]\n'}, [MAIN]),
}


@pytest.mark.parametrize(("files", "order"), IMPORTS.values(), ids=IMPORTS)
def test_imports_are_read_in_containerds_order(files: dict[str, str], order: list[str], tmp_path: Path) -> None:
    seen = read(tmp_path, files)

    assert ([file.path for file in seen.files], seen.problem) == (order, None)


@pytest.mark.parametrize(
    ("imported", "there", "message", "only_ours"),
    [
        (FIRST, "", "does not exist", False),
        ("/run/k0s/containerd-cri.toml", "", "/run is empty or missing here", True),
        ("/run/k0s/containerd-cri.toml", "/run/k0s/other.toml", "does not exist", False),
    ],
)
def test_an_import_that_is_not_there_is_a_problem_unless_its_folder_was_not_saved(
    imported: str, there: str, message: str, only_ours: bool, tmp_path: Path
) -> None:
    files = {MAIN: f'imports = ["{imported}"]\n', **({there: ""} if there else {})}

    assert problem(tmp_path, files) == ConfigurationProblem(imported, f"imported, but {message}", only_ours=only_ours)


@pytest.mark.parametrize(
    ("version", "default", "enabled", "disabled"),
    [
        ("1.6.36", False, False, False),
        ("1.7.28", False, True, False),
        ("2.0.0", True, True, False),
        ("2.3.9", True, True, False),
        ("2.4.0", True, True, True),
    ],
)
def test_whether_cdi_is_on_depends_on_the_release_and_the_file(
    version: str, default: bool, enabled: bool, disabled: bool, tmp_path: Path
) -> None:
    files = ["", f"[{V2}]\nenable_cdi = true\n", f"[{V2}]\nenable_cdi = false\n"]
    seen = [read(tmp_path, {MAIN: f"version = 2\n{text}"}, version).cdi for text in files]

    assert seen == [default, enabled, disabled]


def test_drop_ins_that_nobody_imports_are_named(tmp_path: Path) -> None:
    files = {
        MAIN: "version = 2\nimports = ['conf.d/*.toml']\n",
        f"{FOLDER}/conf.d/read.toml": "",
        f"{FOLDER}/config.d/notes.txt": "",
        f"{FOLDER}/config.d/nvidia.toml": of(2, "nvidia") + handler(V3, "other", ""),
        f"{FOLDER}/config.d/odd.toml": "plugins = 1",
        f"{FOLDER}/config.d/worse.toml": "[",
    }
    put(tmp_path, files)
    (tmp_path / "etc/containerd/config.d/same.toml").symlink_to("../conf.d/read.toml")

    seen = read_configuration(tmp_path, MAIN)

    file = f"{FOLDER}/config.d/nvidia.toml"
    assert [(one.name, one.binary, one.file, one.line) for one in seen.unread_handlers] == [
        ("nvidia", "/opt/n", file, 2),
        ("other", "", file, 7),
    ]


@pytest.mark.parametrize("files", [{}, {MAIN: "version = 3\n"}])
@pytest.mark.parametrize("version", ["2.1.4", "2.4.2"])
def test_containerd_reads_no_drop_in_folder_by_itself(files: dict[str, str], version: str, tmp_path: Path) -> None:
    """The import of conf.d that 2.2 brought stands in `containerd config default`, for a file to be made from."""
    seen = read(tmp_path, {f"{FOLDER}/conf.d/99-nvidia.toml": of(3, "nvidia"), **files}, version)

    unread = [(handler.name, handler.file) for handler in seen.unread_handlers]
    assert (seen.handlers, unread) == ((), [("nvidia", f"{FOLDER}/conf.d/99-nvidia.toml")])


@pytest.mark.parametrize("version", ["", "1.7.28", "2.2.9", "2.4.2"])
@pytest.mark.parametrize(
    ("files", "file"),
    [
        ({MAIN: 'disabled_plugins = ["cri"]\n'}, MAIN),
        ({MAIN: 'imports = ["a.toml"]\n', FIRST: 'disabled_plugins = ["io.containerd.grpc.v1.cri"]'}, FIRST),
        ({MAIN: 'disabled_plugins = ["io.containerd.snapshotter.v1.zfs"]\n'}, ""),
    ],
)
def test_a_disabled_plugin_is_reported_with_its_file(
    version: str, files: dict[str, str], file: str, tmp_path: Path
) -> None:
    """Docker's own file switches the CRI plugin off, by its short name."""
    assert read(tmp_path, files, version).disabled_in == file


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"\n\n[{V2}.containerd.runtimes.nvidia]\n", 3),
        ("[ plugins . 'io.containerd.grpc.v1.cri' . containerd . runtimes . \"nvidia\" ] # NVIDIA's\r\n", 1),
        (f"#\n[{V2}.containerd.runtimes.nvidia.options]\n[{V2}.containerd.runtimes.nvidia]\n", 3),
        (f"#\n[{V2}.containerd.runtimes.nvidia.options]\n", 2),
        (f'a = """\n[{V2}.containerd.runtimes.runc]\n"""\n[{V2}.containerd.runtimes.nvidia]\n', 4),
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
        ("a = 1\nb =", 2, 4),
        ("a = [1,\n", 1, 8),
        ("version = 2\n# \udcff\n", 2, 3),
    ],
)
def test_invalid_toml_is_reported_with_its_position(text: str, line: int, column: int, tmp_path: Path) -> None:
    put(tmp_path, {MAIN: ""})
    (tmp_path / MAIN.lstrip("/")).write_bytes(text.encode(errors="surrogateescape"))
    found = read_configuration(tmp_path, MAIN).problem

    assert found is not None
    assert (found.file, found.line, found.column, found.only_ours) == (MAIN, line, column, False)
    assert "line" not in found.message
    assert "end of document" not in found.message


@pytest.mark.parametrize(
    ("version", "text", "line", "message"),
    [
        ("", "version = 5", 1, "version is 5, but this containerd reads no version above 4"),
        ("1.7.17", "version = 3", 1, "version is 3, but this containerd reads no version above 2"),
        ("2.2.9", "version = 4", 1, "version is 4, but this containerd reads no version above 3"),
        ("2.3.0", "\nversion = 5", 2, "version is 5, but this containerd reads no version above 4"),
        ("", "version = -1", 1, "version is not a number from 1 on"),
        ("", "version = true", 1, "version is not a number"),
        ("", "version = '2'", 1, "version is not a number"),
        ("", "version = 0xffffffffffffffffffffffffffffffffffffffff", 1, "version is not a number from 1 on"),
        ("", "plugins = 1", 1, "plugins is not a table"),
        ("", "[plugins]\ncri = 1", 2, "cri is not a table"),
        ("", "[plugins.cri]\ncontainerd = []", 2, "containerd is not a table"),
        ("", "[plugins.cri.containerd]\nruntimes = 'nvidia'", 2, "runtimes is not a table"),
        ("", "[plugins.cri.containerd.runtimes]\nrunc = {}\nnvidia = 1", 3, "nvidia is not a table"),
        ("", "[plugins.cri.containerd.runtimes.n.options]\nBinaryName = 1", 2, "BinaryName is not a string"),
        ("", "plugins.cri.containerd.runtimes.n.options.BinaryName = 1", 0, "BinaryName is not a string"),
        ("", "[plugins.cri.containerd.runtimes.n.options]\nSystemdCgroup = 1", 2, "SystemdCgroup is not true or false"),
        ("", "[plugins.cri]\ncdi_spec_dirs = '/etc/cdi'", 2, "cdi_spec_dirs is not a list of strings"),
        ("", "imports = [\n  1]", 1, "imports is not a list of strings"),
        ("", "disabled_plugins = 'cri'", 1, "disabled_plugins is not a list of strings"),
        ("", "[grpc]\naddress = 1", 2, "address is not a string"),
        (
            "",
            "[plugins.cri]\nsystemd_cgroup = true",
            2,
            "systemd_cgroup works with io.containerd.runtime.v1.linux only",
        ),
    ],
)
def test_a_value_that_containerd_rejects_is_a_problem(
    version: str, text: str, line: int, message: str, tmp_path: Path
) -> None:
    assert problem(tmp_path, {MAIN: text}, version) == ConfigurationProblem(MAIN, message, line)


def test_a_value_of_another_type_is_reported_with_its_file(tmp_path: Path) -> None:
    wrong = f"version = 3\n[{V3}.containerd.runtimes.nvidia]\nruntime_type = 1\n"

    assert problem(tmp_path, {MAIN: 'imports = ["a.toml"]\n' + of(3, "nvidia"), FIRST: wrong}) == ConfigurationProblem(
        FIRST, "runtime_type is not a string", 3
    )


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
        "[plugins.linux]\nruntime = '/usr/bin/nvidia-container-runtime'",
        "[plugins.cri.containerd.default_runtime]\nruntime_type = 'io.containerd.runtime.v1.linux'",
    ],
)
def test_a_file_beyond_our_bounds_could_not_be_checked(text: str, tmp_path: Path) -> None:
    assert problem(tmp_path, {MAIN: text}, "2.4.2").only_ours


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_plain_file_is_not_read(kind: str, tmp_path: Path) -> None:
    put(tmp_path, {FIRST: ""})
    file = tmp_path / "etc/containerd/config.toml"
    os.mkfifo(file) if kind == "pipe" else file.mkdir()

    assert read_configuration(tmp_path, MAIN).problem == ConfigurationProblem(
        MAIN, "can't be read: not a regular file", only_ours=True
    )


@pytest.mark.parametrize(
    ("count", "text", "last", "message"),
    [(64, "", "063", "more than 64 files"), (2, "#\n" * (1 << 18), "001", "more than 1 MiB together")],
)
def test_more_than_any_node_has_is_not_read(count: int, text: str, last: str, message: str, tmp_path: Path) -> None:
    files = {f"{FOLDER}/conf.d/{number:03}.toml": text for number in range(count)}

    assert problem(tmp_path, {MAIN: 'imports = ["conf.d/*"]', **files}) == ConfigurationProblem(
        f"{FOLDER}/conf.d/{last}.toml", message, only_ours=True
    )


@given(any_trees, st.lists(byte_damages, max_size=2), st.sampled_from(["", "1.7.28", "2.2.9", "2.4.2"]))
def test_any_tree_is_read_or_rejected_with_a_reason(
    tree: dict[str, str], damages: list[tuple[int, int, bytes]], release: str
) -> None:
    any_tree_is_read(tree, damages, release)
