"""`gpu-healthcheck replay` of DCGM output, as called by a person or a program."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from tests.e2e.test_replay import run
from tests.probes.dcgm.documents import FAULTY, NOT_PERSISTENT, SHAPES, Story, dcgm_4, printed, runtime_error

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/record.schema.json").read_text())
WELL = Story()
FAILED = Story(errors={("memory", 1): [FAULTY]})
NO_PERSISTENCE = Story(errors={("software", 0): [NOT_PERSISTENT]})
SKIPPED = Story(skipped=[(test, gpu) for test in ("memory", "pcie") for gpu in range(2)])
ALREADY = "Error: Unable to complete diagnostic. Return: (-39) : A diag instance is already running"


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: bytes, name: str = "dcgm.json") -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return save


def record(*words: str, config: str = "/nowhere") -> tuple[int, dict[str, Any]]:
    answer = CliRunner().invoke(app, ["replay", "--json", *words], env={"CONFIG_DIR": config})
    assert answer.stderr == ""
    fields: dict[str, Any] = json.loads(answer.stdout)
    Draft202012Validator(SCHEMA).validate(fields)
    return answer.exit_code, fields


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("story", "code", "row"),
    [
        (WELL, 0, ("pass", "PASS")),
        (NO_PERSISTENCE, 0, ("warn", "MONITOR")),
        (FAILED, 1, ("fail", "ISOLATE")),
        (SKIPPED, 2, ("unknown", "PASS")),
    ],
)
def test_document_of_each_version_is_recognised_and_judged(
    shape: str, story: Story, code: int, row: tuple[str, str], saved: Any
) -> None:
    ended, fields = record(saved(printed(SHAPES[shape](story))))

    assert ended == code
    assert fields["checks"] == [{"check": "1-dcgm-diag-l2", "status": row[0], "severity": row[1]}]
    assert (fields["status"], fields["severity"]) == row


def test_text_output_shows_each_test_gpu_and_error(saved: Any) -> None:
    name = saved(b"Successfully ran diagnostic for group.\n" + printed(dcgm_4(FAILED)))
    code, out, _ = run(name)

    assert code == 1
    for line in (
        "DCGM 4.2.3, driver 570.148.08",
        "software passed on gpu/0, gpu/1",
        "memory passed on gpu/0",
        "memory failed on gpu/1",
        "  gpu/1: error 52 FAULTY_MEMORY: Found 3 faulty memory elements on GPU 1 -> ISOLATE",
        "ISOLATE DcgmDiagMemory on gpu/1: error 52 FAULTY_MEMORY: Found 3 faulty memory elements on GPU 1",
        f"{name}: fail, severity ISOLATE",
    ):
        assert line in out.splitlines()
    assert "A GPU's memory failed DCGM's test: data read from it differed from the written data" in out
    rule = next(line for line in out.splitlines() if line.startswith("  rule dcgm_errors.csv:52, "))
    number = int(rule.rpartition(":")[2])
    assert "Found 3 faulty memory" in Path(name).read_text().splitlines()[number - 1]


def test_finding_has_its_rule_line_and_gpu(saved: Any) -> None:
    name = saved(printed(SHAPES["3.3.9"](NO_PERSISTENCE)))
    _, fields = record(name)

    (finding,) = fields["findings"]
    assert (finding["reason"], finding["subject"], finding["rule"]) == (
        "DcgmDiagSoftware",
        "gpu/0",
        "dcgm_errors.csv:29",
    )
    assert finding["about"] == {"index": "0", "serial": "1650123000"}
    assert finding["nature"] == "event"
    number = int(finding["source"].removeprefix(f"{name}:"))
    assert NOT_PERSISTENT.text in Path(name).read_text().splitlines()[number - 1]


def test_document_with_a_level_4_test_is_level_4(saved: Any) -> None:
    tests = ("software", "memory", "pcie", "diagnostic", "memtest", "pulse_test", "targeted_power")
    _, fields = record(saved(printed(dcgm_4(Story(tests=tests)))))

    assert [row["check"] for row in fields["checks"]] == ["4-dcgm-diag-l4"]


@pytest.mark.parametrize(
    "content",
    [
        runtime_error(ALREADY),
        runtime_error(ALREADY, "DCGM GPU Diagnostic"),
        b"WARNING: something {first}\n" + runtime_error(ALREADY),
    ],
)
def test_refused_run_is_unknown_with_its_reason(content: bytes, saved: Any) -> None:
    code, fields = record(saved(content))

    assert (code, fields["status"], fields["findings"]) == (2, "unknown", [])
    assert [entry["cause"] for entry in fields["unobserved"]] == ["DcgmAlreadyRunning"]
    _, out, _ = run(saved(content))
    assert "could not check: DcgmAlreadyRunning: another diagnostic runs in the same hostengine" in out


def test_truncated_document_is_unknown(saved: Any) -> None:
    code, fields = record(saved(printed(dcgm_4(FAILED))[:-300]))

    assert (code, fields["unobserved"][0]["cause"]) == (2, "DcgmCutOff")


def test_plain_text_answer_needs_the_option_as(saved: Any) -> None:
    name = saved(b"Error: unable to establish a connection to the specified host: gpu-node\n")

    code, fields = record(name)
    assert (code, fields["unobserved"][0]["cause"]) == (2, "NothingRecognised")
    code, fields = record("--as", "dcgm", name)
    assert (code, fields["unobserved"][0]["cause"]) == (2, "DcgmNoHostengine")


@pytest.mark.parametrize("content", [b"", b"words", b"{}", b'{"DCGM": 1}', b"\x80\xff" * 500])
def test_other_file_is_a_usage_error(content: bytes, saved: Any) -> None:
    code, out, err = run("--as", "dcgm", saved(content))

    assert (code, out) == (3, "")
    assert "not the output of dcgmi diag -j; expected is its JSON, of DCGM 3.3 to 4" in err


def test_document_with_another_file_is_refused(saved: Any) -> None:
    well = printed(dcgm_4(WELL))

    code, _, err = run(saved(well), saved(well, "second.json"))
    assert (code, "judged alone: pass no other file with it" in err) == (3, True)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda raw: b"\xef\xbb\xbf" + raw])
def test_document_is_read_alike_however_it_was_saved(pack: Any, saved: Any) -> None:
    packed = pack(printed(dcgm_4(FAILED)).replace(b"\n", b"\r\n"))

    assert record(saved(packed))[0] == 1


def test_document_after_a_long_text_is_read_from_a_pipe() -> None:
    noise = b"".join(b"CUDA noise, line %d of a great many\n" % number for number in range(1000))
    saved = noise + printed(dcgm_4(FAILED))
    code, out, err = run("--json", "-", stdin=saved)

    assert (code, err) == (1, "")
    number = [FAULTY.text.encode() in line for line in saved.splitlines()].index(True) + 1
    assert [load["source"] for load in json.loads(out)["findings"]] == [f"-:{number}"]


def test_severity_overrides_apply(saved: Any, tmp_path: Path) -> None:
    (tmp_path / "severity-overrides").write_text("dcgm 52 = RESET\n")

    _, fields = record(saved(printed(dcgm_4(FAILED))), config=str(tmp_path))
    assert [(entry["severity"], entry["rule"]) for entry in fields["findings"]] == [("RESET", "severity-overrides")]


def test_control_characters_are_not_printed(saved: Any) -> None:
    document = json.loads(json.dumps(dcgm_4(FAILED)).replace("Found 3", "\\u001b[2J\\u202eFound 3"))
    _, out, _ = run(saved(printed(document)))

    assert "\x1b" not in out
    assert "\u202e" not in out


def test_document_without_results_is_unknown(saved: Any) -> None:
    code, fields = record(saved(printed({"DCGM Diagnostic": {"test_categories": []}})))

    assert (code, fields["status"], fields["severity"], fields["findings"]) == (2, "unknown", "PASS", [])


def test_each_of_thousands_of_results_is_found_on_its_line(saved: Any) -> None:
    """Each finding was looked for in the whole document, and each result of one device joined with all before it."""
    results = [
        {"entity_group": "GPU", "entity_id": number, "status": "Fail", "warnings": [{"error_id": 52, "warning": text}]}
        for number, text in enumerate(f"é{number} {'a' * 400}" for number in range(1000))
    ]
    of_objects = [{**result, "entity_id": 0} for result in results]
    tests = [{"name": "memory", "results": results}, {"name": "pcie", "results": of_objects}]
    document = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}
    content = json.dumps(document, ensure_ascii=True, indent=0).encode()

    _, fields = record(saved(content))

    sources = {entry["source"].rpartition(":")[2] for entry in fields["findings"] if entry["subject"] != "gpu/0"}
    assert sources
    assert len(sources) == len([entry for entry in fields["findings"] if entry["subject"] != "gpu/0"])
    assert all(source.isdigit() for source in sources)
