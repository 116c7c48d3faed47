from __future__ import annotations

import json
import re
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, Problem, diagnose
from gpu_healthcheck.diagnosis.facts.components import component_table
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page
from gpu_healthcheck.diagnosis.report.problem_groups import problem_groups
from gpu_healthcheck.diagnosis.snapshot.gpu_use import read_use
from gpu_healthcheck.healthcheck.host.console import Screen
from tests.diagnosis.component_states import DRIVER, gpu_node, operand, operator
from tests.diagnosis.states import NOW, Object, condition, pod, snapshot, waiting
from tests.markup import HOSTILE, LIVE, Tags, parsed
from tests.prometheus import series


def state() -> list[Object]:
    pull = waiting("ImagePullBackOff", 'Back-off pulling image "x": not found', f"{DRIVER}-ctr")
    broken = operand(DRIVER, "a", states=[pull], phase="Pending")
    objects = operator(gpu_node("a"), gpu_node("b"))
    return [*(entry for entry in objects if entry["metadata"]["name"] != f"{DRIVER}-a"), broken, pod("x", 3, on="b")]


def report(*objects: Object) -> Report:
    seen = snapshot(*objects)
    return Report(diagnose(seen), cluster=allocation(seen), components=component_table(seen))


def hostile(words: str) -> Report:
    """Words of a cluster in all places where some may stand."""
    plain = report(*state())
    (problem,) = plain.diagnosis.problems
    found = FoundCause(problem.found.cause, f"node/{words}", (words,), (f"Do {words}", f"Run `{words}`"), (words,))
    cluster = allocation(snapshot(*state(), pod("y", 1, on="b", namespace=words.replace("/", "-")), gpu_node(words)))
    return Report(
        Diagnosis(NOW, (Problem(found, (Problem(found),)),), ()), cluster=cluster, components=plain.components
    )


def rendered(text: str) -> Tags:
    return parsed(MarkdownIt("commonmark").enable("table").render(text))


def test_html_legend_has_each_colour_of_the_bars() -> None:
    closed = gpu_node("c", cordoned=True)
    page = html_page(report(*state(), closed))
    legend = page.partition('class="legend"')[2].partition("</p>")[0]
    used = set(re.findall(r'<rect class="(\w+)" x=', page))

    assert "unknown" in used
    assert used <= set(re.findall(r'<rect class="(\w+)"', legend))


@pytest.mark.parametrize("words", HOSTILE)
def test_html_escapes_texts_of_the_cluster(words: str) -> None:
    page = parsed(html_page(hostile(words)))
    assert not set(LIVE) & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert words in "".join(page.words)


@pytest.mark.parametrize("words", HOSTILE)
def test_markdown_escapes_texts_of_the_cluster(words: str) -> None:
    calm, wild = rendered(markdown_page(hostile("word"))), rendered(markdown_page(hostile(words)))
    extra = ("code",)  # a lone backtick between two of ours splits a command
    assert [tag for tag in wild.tags if tag not in extra] == [tag for tag in calm.tags if tag not in extra]
    assert words.strip() in "".join(wild.words)


def test_html_needs_no_other_file() -> None:
    page = html_page(report(*state()))
    assert page.isascii()
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_markdown_has_the_sections_in_order() -> None:
    text = markdown_page(report(*state()))
    heads = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert heads == [
        "Cluster GPU Status",
        "Component Status",
        "Identified Issues",
        "Resource Allocation Summary",
        "Allocation per Node",
        "Recommended Actions",
    ]
    assert "- Total GPU Nodes: 2 (2 ready and not cordoned)" in text
    assert "- GPUs `nvidia.com/gpu`: 13 of 16 free" in text
    assert "| driver | ⚠️ partly | `570.124.06-ubuntu22.04` | 1/2 |" in text
    assert "   - Severity: High" in text


def test_report_of_a_healthy_cluster_has_no_issues() -> None:
    text = markdown_page(report(*operator(gpu_node("a"))))
    assert "Nothing found." in text
    assert "Recommended" not in text
    assert "Nothing found." in html_page(report(*operator(gpu_node("a"))))


def test_document_has_cluster_and_components() -> None:
    fields = document(report(*state()))
    assert (fields["cluster"]["gpu_nodes"], fields["cluster"]["gpus"]) == (2, 16)
    (entry,) = fields["cluster"]["resources"]
    assert (entry["allocatable"], entry["held"], entry["free"]) == (16, 3, 13)
    driver = next(entry for entry in fields["components"] if entry["component"] == "driver")
    assert (driver["health"], driver["ready"], driver["wanted"], driver["lacking"]) == ("partly", 1, 2, ["a"])
    assert json.loads(json.dumps(fields)) == fields


def pods_of_a_mistake(names: Iterable[str], gpu_type: str = "h100") -> list[Object]:
    """Each with it in its own spec, as nothing made them."""
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    waits = [condition("PodScheduled", "False", "Unschedulable", message)]
    return [pod(name, spec={"nodeSelector": {"gpu-type": gpu_type}}, conditions=waits) for name in names]


def forms(report: Report) -> list[str]:
    shown = Screen(file=StringIO(), width=80)
    for part in terminal.page(report, 80):
        shown.print(part, soft_wrap=True)
    page = "".join(parsed(html_page(report)).words)
    return [shown.file.getvalue(), markdown_page(report), page]  # type: ignore[attr-defined]


def test_report_groups_equal_mistakes_except_in_json() -> None:
    grouped = report(gpu_node("a"), *pods_of_a_mistake(f"trainer-{number}" for number in range(200)))

    for text in forms(grouped):
        assert text.count("trainer-") <= 24
        assert "200 times" in text
        assert "180 more" in text
        assert text.count("Remove gpu-type from the selector.") <= 2
    assert len(document(grouped)["causes"]) == 200


def test_report_limits_the_entries_of_a_cause() -> None:
    pods = [entry for number in range(60) for entry in pods_of_a_mistake([f"x-{number}"], f"type-{number}")]

    for text in forms(report(gpu_node("a"), *pods)):
        assert text.count("affinity excludes every") == 8
        assert "52 more, with other details" in text


def test_problem_groups_keep_consequences_apart() -> None:
    (problem,) = report(*state()).diagnosis.problems
    apart = [Problem(replace(problem.found, subject=f"node/{name}"), (problem,)) for name in "ab"]

    assert [len(group.subjects) for group in problem_groups(apart)] == [1, 1]


LONG = "n" * 253


def test_terminal_breaks_no_name_and_no_command() -> None:
    command = "kubectl -n team get pod " + LONG
    (plain,) = report(*state()).diagnosis.problems
    found = replace(plain.found, subject=f"node/{LONG}", evidence=(f"it is {LONG}",), remedy=(f"Look: `{command}`",))

    text = forms(Report(Diagnosis(NOW, (Problem(found),), ())))[0]

    assert f"node/{LONG}" in text
    assert f"`{command}`" in text
    assert all(len(line) <= 80 for line in text.splitlines() if LONG not in line)


def test_terminal_in_a_pipe_has_no_escapes_and_no_wrapping(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": state()}))

    text = CliRunner().invoke(app, ["diagnose", "--from", str(file)]).stdout

    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    means = report(*state()).diagnosis.problems[0].found.cause.means
    assert f"   {means}" in text.splitlines()


def test_report_shows_utilization_with_a_prometheus() -> None:
    seen = replace(snapshot(*state()), gpu_use=read_use([series(0.3, node="a", gpu="0", UUID="GPU-0")]))
    used = Report(diagnose(seen), cluster=allocation(seen))

    assert "| 30 % |" in markdown_page(used)
    assert "- GPU utilization: 30 % on average" in markdown_page(used)
    assert '<td class="number">30 %</td>' in html_page(used)
    assert "Used" not in markdown_page(report(*state()))


def test_report_without_pods_calls_no_gpu_free() -> None:
    seen = snapshot(gpu_node("a"), missing=["Pod"])
    unseen = Report(diagnose(seen), cluster=allocation(seen))
    assert "8 of 8 free" not in markdown_page(unseen)
    assert "8 of 8 free" not in html_page(unseen)
    assert document(unseen)["cluster"]["resources"][0]["free"] is None


@pytest.mark.parametrize(("form", "begins"), [("markdown", "# GPU"), ("html", "<!DOCTYPE html>"), ("json", "{")])
def test_diagnose_prints_each_form(form: str, begins: str, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": state()}))
    result = CliRunner().invoke(app, ["diagnose", "--from", str(file), "-o", form])
    assert result.exit_code == 1
    assert result.stdout.lstrip().startswith(begins)


def test_diagnose_reads_all_files_that_a_shell_expands(tmp_path: Path) -> None:
    """As `--from *.json` becomes: one file for the option, words of the rest."""
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    for file, node in ((path, gpu_node("a")), (other, gpu_node("b"))):
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}))

    all_of_it = CliRunner().invoke(app, ["diagnose", "--from", str(path), str(other), "-o", "json"])
    result_node = CliRunner().invoke(app, ["diagnose", "--from", str(path), str(other), "node", "b", "-o", "json"])
    live = CliRunner().invoke(app, ["diagnose", str(path)])

    assert json.loads(all_of_it.stdout)["cluster"]["gpu_nodes"] == 2
    assert all_of_it.exit_code == result_node.exit_code != 3
    assert live.exit_code == 3
