"""House rules: a promise in one place is kept in the others."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.cli import index
from gpu_healthcheck.diagnosis import causes
from gpu_healthcheck.healthcheck import checks
from gpu_healthcheck.healthcheck.catalog.profiles import PROFILES_FILE
from gpu_healthcheck.healthcheck.checks import driver_messages, driver_reasons
from gpu_healthcheck.healthcheck.memory import reason_names
from gpu_healthcheck.healthcheck.model import Check, Reason, Severity, UnobservedCause
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of
from gpu_healthcheck.healthcheck.settings.reading import read_settings
from gpu_healthcheck.healthcheck.verdict.acknowledgement import UNEXPLAINED
from gpu_healthcheck.repair.steps import ResetSettings
from gpu_healthcheck.sim.scenarios import Expected, Scenario, scenarios
from gpu_healthcheck.sweeper.settings import SweeperSettings
from tools import docs, explain_index, manifests

ROOT = Path(__file__).parents[1]
PARTS = ("healthcheck", "diagnosis", "agent", "evict", "sweeper", "quarantine", "repair")
ROOMS = sorted(
    str(file.parent.relative_to(ROOT)).removeprefix("healthcheck/")
    for part in (*PARTS, "cli")
    for file in (ROOT / part).rglob("__init__.py")
    if file.parent.name != "healthcheck" and "diagnosis" not in file.parent.parts[len(ROOT.parts) : -1]
)
"""Of a diagnosis the whole is one: its families are tried on states of a cluster, which meet them all."""
OTHER_TESTS = {"chart", "e2e", "gate", "image", "monitoring", "release", "sim", "formats"}
"""The folders of tests that are about no room of the product."""
ALL_CHECKS = (*checks.CHECKS, *checks.DEEP_CHECKS)
REASONS = [reason.name for reason in dict.fromkeys(one for check in ALL_CHECKS for one in check.reasons)]
"""One that two sources report is declared once."""
LIGHT_REASONS = [reason.name for check in checks.CHECKS for reason in check.reasons]
WITHOUT_A_TWIN: list[str] = []
"""Scenarios of faults that no healthy one stands beside yet."""
SHARED = {
    *("__init__", "driver_errors", "driver_reasons", "listed", "examine", "expectation", "gpu_runtime", "per_gpu"),
    "roce_fabric",
    *("runtime_fixes", "runtime_restart", "severities", "siblings"),
}
"""What stands beside the checks and is none."""
MODULES = sorted(file.stem for file in (ROOT / "healthcheck/checks").glob("*.py") if file.stem not in SHARED)


def documents() -> list[dict[str, object]]:
    files = sorted((ROOT / "kubernetes/manifests").glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]


def test_every_module_of_checks_is_in_the_list() -> None:
    assert sorted({check.judge.__module__.rpartition(".")[2] for check in ALL_CHECKS}) == MODULES
    light = [check.judge.__module__ for check in checks.CHECKS]
    assert sorted(set(light)) == sorted(light)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_its_tests(room: str) -> None:
    """`make test ONLY=room` runs them."""
    assert list((ROOT / "tests" / room).rglob("test_*.py")) != []


def test_no_folder_of_tests_is_named_after_a_room_that_is_gone() -> None:
    folders = {file.parent.relative_to(ROOT / "tests").parts[0] for file in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - {room.split("/")[0] for room in ROOMS} == OTHER_TESTS


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_a_check_is_named_after_its_file_and_belongs_to_a_known_group(check: Check) -> None:
    stem = check.judge.__module__.rpartition(".")[2]
    assert (stem.replace("_", "-"), True) == (check.name, check.group in checks.GROUPS.values())


@pytest.mark.parametrize("check", checks.DEEP_CHECKS, ids=lambda check: check.name)
def test_a_deep_check_has_a_group_of_its_own_and_is_named_after_it(check: Check) -> None:
    """Group 9 also has light checks of the same ports."""
    assert check.group in checks.GROUPS.values()
    if check.group != "9-roce":
        assert check.group.partition("-")[2] == check.name
    assert [one.name for one in checks.DEEP_CHECKS if one.group == check.group] == [check.name]


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_every_reason_in_a_check_is_declared(check: Check) -> None:
    module = importlib.import_module(check.judge.__module__)
    written = {value for _, value in inspect.getmembers(module) if isinstance(value, Reason)}
    assert set(check.reasons) == written


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.name)
def test_a_check_finds_nothing_under_another_name_than_its_reasons(check: Check) -> None:
    source = inspect.getsource(importlib.import_module(check.judge.__module__))
    literal = re.findall(r'Finding\(\s*(?:reason=)?"(\w+)"', source)
    assert literal == []


def test_reasons_are_unique_and_pascal_case() -> None:
    assert sorted(set(REASONS)) == sorted(REASONS)
    assert [name for name in REASONS if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", name)] == []


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_has_a_heading_of_its_own(reason: str) -> None:
    assert f"\n## {reason}\n" in (ROOT / "docs/findings.md").read_text()


@pytest.mark.parametrize("reason", LIGHT_REASONS)
def test_a_reason_has_a_scenario(reason: str) -> None:
    assert reason in {scenario.stands_for for scenario in scenarios()}


@pytest.mark.parametrize("twin", [scenario for scenario in scenarios() if scenario.twin_of], ids=lambda twin: twin.name)
def test_a_twin_is_healthy_and_differs_from_its_fault(twin: Scenario) -> None:
    fault = next(scenario for scenario in scenarios() if scenario.name == twin.twin_of)
    assert (twin.stands_for, twin.expect) == ("", Expected("pass", "PASS", [], []))
    assert inputs(twin) != inputs(fault)


def inputs(scenario: Scenario) -> dict[str, Any]:
    """Return the inputs of a scenario's node, without its expectations."""
    result = ("name", "stands_for", "twin_of", "expect")
    return {key: value for key, value in msgspec.structs.asdict(scenario).items() if key not in result}


def test_every_fault_has_a_healthy_twin() -> None:
    faults = {scenario.name for scenario in scenarios() if scenario.stands_for}
    assert sorted(faults - {scenario.twin_of for scenario in scenarios()}) == WITHOUT_A_TWIN


def test_every_cause_is_declared_once_at_the_top_of_a_module_and_listed() -> None:
    parts = (*PARTS, "cli")
    files = [file for part in parts if part != "diagnosis" for file in (ROOT / part).rglob("*.py")]
    modules = [ast.parse(file.read_text()) for file in files]  # a diagnosis has causes of another kind
    declared = [
        call
        for module in modules
        for statement in module.body
        for call in causes_made(getattr(statement, "value", None))
    ]

    assert len(declared) == sum(len(causes_made(module)) for module in modules)
    by_name = [
        attribute for module in modules for attribute in ast.walk(module) if isinstance(attribute, ast.Attribute)
    ]
    # A name from the JSON of saved evidence. Any other is a declared one.
    assert [ast.unparse(attribute) for attribute in by_name].count("UnobservedCause.named") == 1
    assert sorted(ast.literal_eval(call.args[0]) for call in declared) == sorted(
        cause.name for cause in explain_index.CAUSES
    )


def causes_made(code: ast.AST | None) -> list[ast.Call]:
    calls = [call for call in ast.walk(code) if isinstance(call, ast.Call)] if code is not None else []
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "UnobservedCause"]


@pytest.mark.parametrize("cause", explain_index.CAUSES, ids=lambda cause: cause.name)
def test_a_cause_says_what_it_means_and_what_to_do(cause: UnobservedCause) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", cause.name)
    assert (cause.meaning[-1:], cause.action[-1:]) == (".", ".")
    assert cause == UnobservedCause.named(cause.name)  # as a record or saved evidence names it


def test_causes_are_unique_and_no_cause_is_a_reason() -> None:
    names = [cause.name for cause in explain_index.CAUSES]
    assert sorted({*names} - {*REASONS}) == sorted(names)


def test_every_metric_is_in_the_list() -> None:
    """docs/metrics.md and `explain` use the list."""
    telemetry = Telemetry()
    shown = {metric.name.removesuffix("_total") for metric in telemetry.registry.collect()}
    assert {metric.name.removesuffix("_total") for metric in telemetry.metrics} == shown


def test_severity_group_check_setting_and_metric_are_explained() -> None:
    names = [
        *(severity.name for severity in Severity),
        *checks.GROUPS.values(),
        *checks.SHORT_NAMES,
        UNEXPLAINED,
    ]
    names += [*(check.name for check in ALL_CHECKS), *settings_of(NodeSettings), PROFILES_FILE]
    names += [metric.name for metric in Telemetry().metrics]
    assert [name for name in names if index.without_prefix(name) not in index.words()] == []


def test_a_reason_without_a_check_has_a_heading_of_its_own_too() -> None:
    assert f"\n## {UNEXPLAINED}\n" in (ROOT / "docs/findings.md").read_text()


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def leads_nowhere(link: str, page: Path) -> bool:
    """Return whether the link names no file, or an anchor that GitHub makes of no heading of a page."""
    path, _, anchor = link.partition("#")
    file = page.parent / path if path else page
    if not file.exists() or not anchor or file.suffix != ".md":
        return not file.exists()
    titles = (
        re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.*)", without_code(file), re.MULTILINE)
    )
    return anchor not in {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda page: page.name
)
def test_a_link_leads_to_a_file_and_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)\s]+)\)", without_code(page))
    assert [link for link in links if leads_nowhere(link, page)] == []


def test_each_page_is_in_the_list_of_pages() -> None:
    listed = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/README.md").read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - listed == {"README.md"}


def test_a_word_is_explained_with_a_page_and_heading_that_exist() -> None:
    pages = {entry.more for entries in index.words().values() for entry in entries if entry.more.startswith("docs/")}
    assert [page for page in sorted(pages) if leads_nowhere(page, ROOT / "README.md")] == []


def test_headings_of_causes_are_those_of_our_families() -> None:
    families = [docs._family(name) for name in sys.modules if name.startswith(f"{causes.__name__}.")]
    headings = re.findall(r"(?m)^## (.*)$", docs.diagnoses_page())

    assert len(headings) > 20
    assert [heading for heading in headings if heading not in {family.partition("\n")[0] for family in families}] == []


def test_the_generated_documents_are_fresh() -> None:
    assert [path.name for path, text in docs.rendered().items() if path.read_text() != text] == []


def test_the_config_map_sets_nothing_and_its_comments_have_the_default_of_every_key(tmp_path: Path) -> None:
    config = next(document for document in documents() if document["kind"] == "ConfigMap")
    assert config["data"] == {}
    text = manifests.MANIFEST.read_text()
    assert text == manifests.render(text)
    _, _, commented = text.partition(manifests.BEGIN)
    data = yaml.safe_load(re.sub("(?m)^#", "", commented.partition(manifests.END)[0]))
    known = {*settings_of(NodeSettings), PROFILES_FILE}
    assert data.keys() ^ known == {"KERNEL_LOG_LINES", "SWEEP_IMAGE"}  # taken, and without effect
    for key, value in data.items():
        (tmp_path / key).write_text(value)
    settings = read_settings(tmp_path)
    assert (settings.values, settings.bad) == (NodeSettings(), ())


def test_manifests_set_no_variable_that_no_settings_class_knows() -> None:
    kinds = (AgentSettings, SweeperSettings, ResetSettings)
    known = {key for kind in kinds for key in settings_of(kind)}
    known |= {"NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"}  # read by NVIDIA's container runtime
    containers = [container for document in documents() for container in containers_in(document)]
    names = {entry["name"] for container in containers for entry in container.get("env", [])}
    assert (len(containers), names - known) == (5, set())


def containers_in(value: Any) -> list[dict[str, Any]]:
    """The containers anywhere in a manifest."""
    if isinstance(value, dict):
        return [*value.get("containers", []), *(found for entry in value.values() for found in containers_in(entry))]
    return [found for entry in value for found in containers_in(entry)] if isinstance(value, list) else []


def test_the_folder_of_manifests_never_becomes_a_package() -> None:
    """With an __init__.py it would hide the client of the same name."""
    assert list((ROOT / "kubernetes").rglob("__init__.py")) == []


def test_one_door_to_the_terminal() -> None:
    """Shown text is untrusted: only `console` and `streams` use rich's console and the standard streams."""
    files = [file for part in (*PARTS, "cli") for file in (ROOT / part).rglob("*.py")]
    found = {str(file.relative_to(ROOT)): unprinted_output(ast.parse(file.read_text())) for file in files}
    assert {name: ways for name, ways in found.items() if ways} == {
        "cli/gate.py": {"print"},  # it loads the standard library alone, and escapes what it prints
        "healthcheck/host/console.py": {"rich.console.Console", "markup", "emoji", "highlight"},
        "healthcheck/host/streams.py": {"sys.stdout.write", "sys.stderr.write"},
        "healthcheck/probes/nvml/child.py": {"print"},  # to its parent
        "healthcheck/host/grpc_child.py": {"print"},
        "healthcheck/host/open_devices_child.py": {"print"},
        "sweeper/sweep_run.py": {"sys.stdout.write"},  # its findings in words, printable as all findings are
    }


def unprinted_output(module: ast.Module) -> set[str]:
    """Return the parts of a module that print without `console`, or read text as markup."""
    found = set()
    for part in ast.walk(module):
        match part:
            case ast.ImportFrom(module=str(source), names=names):
                found |= {f"{source}.{name.name}" for name in names} & {"rich.console.Console", "rich.print"}
                found |= {source} & {"rich.markup", "rich.ansi"}
            case ast.Attribute(ast.Attribute(ast.Name("sys"), "stdout" | "stderr" as stream), "write" | "writelines"):
                found.add(f"sys.{stream}.write")
            case ast.Attribute(attr="from_markup" | "from_ansi" | "render_markup" as way):
                found.add(way)
            case ast.keyword(arg="markup" | "emoji" | "highlight" as switch):
                found.add(switch)
            case ast.Call(func=ast.Name(id="print")):
                found.add("print")
    return found


def test_the_readme_shows_what_the_demo_prints() -> None:
    demo = (ROOT / "sim/demo.py").read_text()
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition("<!-- demo: begin -->")[2].partition("<!-- demo: end -->")[0]
    for words in ("GPU 3 falls off the bus", "the driver hangs", "rebooted: pass", "written to the Node"):
        assert (words in demo, words in shown) == (True, True)


def test_every_test_that_the_security_page_names_is_there() -> None:
    page = (ROOT / "docs/security.md").read_text().replace("`test_admission::", "`tests/cluster/test_admission.py::")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    missing = [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()]

    assert (len(named) > 20, missing) == (True, [])


def test_the_memory_names_checks_and_reasons_that_exist() -> None:
    checks_named = {reason_names.LEVEL_2, reason_names.DRIVER_MESSAGES, *reason_names.DEEP_CHECKS}
    reasons_named = {
        reason_names.LIBRARY_MISMATCH,
        reason_names.GPU_UNBOUND,
        reason_names.REMAP_FAILED,
        reason_names.REMAP_PENDING,
        reason_names.SLOWER_THAN_SIBLINGS,
        *(reason_names.FELL_OFF_BUS, reason_names.NOT_RESPONDING, reason_names.PCIE_ERROR),
        *(reason_names.NVLINK_TRAINING, reason_names.INIT_FAILED),
        *reason_names.OF_THE_NETWORK,
    }

    assert checks_named <= {check.name for check in ALL_CHECKS}
    assert {check.name for check in checks.DEEP_CHECKS} == reason_names.DEEP_CHECKS
    assert reasons_named <= set(REASONS)
    assert set(reason_names.STOPS_PODS) <= {
        reason.name for check in ALL_CHECKS if check.group[0] in "78" for reason in check.reasons
    }
    assert driver_reasons.PROBE_FAILED == reason_names.DRIVER_LOAD
    messages = {driver_messages.PCIE_FATAL, driver_messages.PCIE_RECOVERED}
    assert messages == {reason_names.PCIE_FATAL, reason_names.PCIE_RECOVERED}
