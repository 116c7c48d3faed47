"""Output of dcgmi in the formats of all supported versions, and in none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import (
    LONGEST_ANSWER,
    DiagAnswer,
    DiagError,
    DiagResult,
    read_answer,
)
from tests.captures.saving import saved_and_read
from tests.probes.dcgm.documents import (
    FAULTY,
    NOT_PERSISTENT,
    SHAPES,
    Said,
    Story,
    dcgm_3_3_1,
    dcgm_3_3_9,
    dcgm_4,
    dcgm_4_5,
    printed,
    runtime_error,
)

FAILED = Story(errors={("memory", 1): [FAULTY]})
BANNER = b"WARNING: You are using a DCGM installation with limited functionality {not all}\n"


def read(document: Any) -> DiagAnswer:
    return read_answer(printed(document))


def rows(answer: DiagAnswer) -> set[tuple[str, str, int | None, str]]:
    return {(result.test, result.kind, result.index, result.status) for result in answer.results}


def of(answer: DiagAnswer, test: str, index: int | None = None) -> DiagResult:
    return next(
        result for result in answer.results if (result.test, result.index) == (test, index) and result.status != "pass"
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_version_tells_the_same_of_the_tests_of_a_gpu(shape: str) -> None:
    answer = read(SHAPES[shape](FAILED))

    assert {row for row in rows(answer) if row[0] != "software"} == {
        ("memory", "gpu", 0, "pass"),
        ("memory", "gpu", 1, "fail"),
        ("pcie", "gpu", 0, "pass"),
        ("pcie", "gpu", 1, "pass"),
    }
    (error,) = of(answer, "memory", 1).errors
    assert (error.text, error.id, error.severity) == (FAULTY.text, 52, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_version_tells_the_same_of_the_software(shape: str) -> None:
    answer = read(SHAPES[shape](Story(errors={("software", 0): [NOT_PERSISTENT]})))

    (failed,) = [result for result in answer.results if result.status == "fail"]
    assert failed.test == "software"
    assert failed.index == 0
    assert failed.errors[0].text == f"Persistence Mode: {NOT_PERSISTENT.text}"


@pytest.mark.parametrize("shape", ["3.3.9", "4.2.3", "4.5.2"])
def test_an_error_of_the_software_is_put_down_to_its_own_gpu(shape: str) -> None:
    """DCGM 3.3.3 to 3.3.9 give the number of the last GPU alone."""
    each = {("software", gpu): [Said(f"Persistence mode for GPU {gpu} is disabled.", 29, 8, 5)] for gpu in range(3)}

    answer = read(SHAPES[shape](Story(3, errors=each)))

    failed = {result.index: result.errors for result in answer.results if result.status == "fail"}
    assert {index: [error.text[-27:] for error in errors] for index, errors in failed.items()} == {
        gpu: [f" mode for GPU {gpu} is disabled."[-27:]] for gpu in range(3)
    }


@pytest.mark.parametrize(
    ("shape", "version", "driver", "serials"),
    [
        ("3.3.9", "3.3.9", "535.129.03", {0: "1650123000", 1: "1650123001"}),
        ("4.2.3", "4.2.3", "570.148.08", {0: "1650123000", 1: "1650123001"}),
    ],
)
def test_what_else_a_version_tells(shape: str, version: str, driver: str, serials: dict[int, str]) -> None:
    answer = read(SHAPES[shape](Story()))

    assert (answer.version, answer.driver, dict(answer.serials)) == (version, driver, serials)


@pytest.mark.parametrize("serial", ["<<<NOT_SUPPORTED>>>", "N/A", "0", "", None, 7])
def test_a_serial_that_is_none_is_left_out(serial: Any) -> None:
    document = dcgm_4(Story())
    document["entity_groups"][0]["entities"][0]["serial_num"] = serial

    assert list(read(document).serials) == [1]


def test_errors_that_the_summary_repeats_count_once() -> None:
    assert read(dcgm_4_5(FAILED)).results == read(dcgm_4(FAILED)).results


def test_an_error_of_the_summary_alone_is_of_the_whole_node() -> None:
    document = dcgm_4_5(Story())
    test = document["DCGM Diagnostic"]["test_categories"][1]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [{"warning": "no GPU", "error_id": 82, "error_severity": 5}]}

    assert of(read(document), "memory") == DiagResult("memory", "fail", errors=(DiagError("no GPU", 82, None, 5),))


@pytest.mark.parametrize("results", [None, [], "absent"])
def test_a_test_with_a_summary_only_is_read_from_it(results: Any) -> None:
    document = dcgm_4(Story(tests=("memory",)))
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test |= {"results": results} if results != "absent" else {}
    if results == "absent":
        del test["results"]
    test["test_summary"] = {"status": "Skip"}

    assert read(document).results == (DiagResult("memory", "skip"),)


def test_a_failed_summary_is_reported_although_no_gpu_failed() -> None:
    document = dcgm_4(Story(tests=("memory",)))
    document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["test_summary"] = {"status": "Fail"}

    assert ("memory", "", None, "fail") in rows(read(document))


def test_holes_in_the_arrays_are_passed_over() -> None:
    whole, holed = dcgm_3_3_9(FAILED), dcgm_3_3_9(FAILED)
    for category in holed["DCGM GPU Diagnostic"]["test_categories"]:
        for test in category["tests"]:
            test["results"] = [None, *test["results"], None]
            for result in filter(None, test["results"]):
                if "warnings" in result:
                    result["warnings"] = [None, *result["warnings"]]
        category["tests"] = [None, *category["tests"], 3, "words", []]
    holed["DCGM GPU Diagnostic"]["test_categories"].insert(0, None)

    assert read(holed) == read(whole)


@pytest.mark.parametrize(
    ("name", "category", "test"),
    [
        ("Blacklist", "Deployment", "software"),
        ("Permissions and OS-related Blocks", "Deployment", "software"),
        ("Page Retirement/Row Remap", "Deployment", "software"),
        ("A test of tomorrow", "Deployment", "software"),
        ("GPU Memory", "Hardware", "memory"),
        ("Pulse Test", "Hardware", "pulse_test"),
        ("EUD Test", "Stress", "eud"),
        ("CPU EUD Test", "Stress", "cpu_eud"),
        ("SM Stress", "Stress", "sm_stress"),
        ("Context Create", "Deployment", "context_create"),
        ("nvbandwidth", "Integration", "nvbandwidth"),
        ("nccl_tests", "Stress", "nccl_tests"),
        ("A test of tomorrow", "Hardware", "a_test_of_tomorrow"),
        (None, "Hardware", ""),
        ("x" * 9999, "Hardware", "x" * 64),
    ],
)
def test_a_test_has_one_name_over_all_versions(name: Any, category: str, test: str) -> None:
    results = [{"gpu_id": "0", "status": "Pass"}]
    tests = [{"name": name, "results": results}]
    answer = read({"DCGM GPU Diagnostic": {"test_categories": [{"category": category, "tests": tests}]}})

    assert [result.test for result in answer.results] == [test]


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("Pass", "pass"),
        ("PASS", "pass"),
        ("fail", "fail"),
        ("Warn", "fail"),
        ("SKIP", "skip"),
        ("Not Run", "not-run"),
        ("", "not-run"),
        (None, "not-run"),
        ("Perhaps", "unknown"),
        (1, "unknown"),
        (["Pass"], "unknown"),
    ],
)
def test_status_is_known_or_unknown(word: Any, status: str) -> None:
    results = [{"entity_group": "GPU", "entity_id": 0, "status": word}]
    answer = read({"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": results}]}]}})

    assert [result.status for result in answer.results] == [status]


@pytest.mark.parametrize(
    ("result", "kind", "index"),
    [
        ({"gpu_id": "3"}, "gpu", 3),
        ({"gpu_id": 3}, "gpu", 3),
        ({"gpu_ids": " 3 "}, "gpu", 3),
        ({"cpu_id": "1"}, "cpu", 1),
        ({"entity_group": "CPU", "entity_id": 1}, "cpu", 1),
        ({"entity_group": "GPU", "entity_id": 16}, "gpu", 16),
        ({"entity_group": "Switch", "entity_id": 2}, "nvswitch", 2),
        ({"entity_id": 2}, "gpu", 2),
        ({"entity_group": "None", "entity_id": 0}, "", None),
        ({"entity_group": "GPU", "entity_id": -1}, "", None),
        ({"entity_group": "GPU", "entity_id": True}, "", None),
        ({"gpu_id": "all"}, "", None),
        ({"gpu_id": 10**30}, "", None),
        ({}, "", None),
    ],
)
def test_a_result_names_its_device(result: dict[str, Any], kind: str, index: int | None) -> None:
    tests = [{"name": "memory", "results": [result | {"status": "Pass"}]}]
    (row,) = read({"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}}).results

    assert (row.kind, row.index) == (kind, index)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"Successfully ran diagnostic for group.\n", b"done\n"),
        (BANNER, b""),
        (b'{"level":"info","msg":"starting {} now"}\n', b'{"level":"info"}\n'),
        (b"{ not json\n", b"}\n{\n"),
        (b"\xff\xfe\x00 noise\r\n", b"\0"),
    ],
)
def test_text_before_and_after_the_document_is_ignored(before: bytes, after: bytes) -> None:
    answer = read_answer(before + printed(dcgm_4(FAILED)) + after)

    assert (answer.results, answer.documents, answer.cut_off) == (read(dcgm_4(FAILED)).results, 1, False)


def test_further_details_are_printed_in_lines() -> None:
    answer = read_answer(BANNER + printed(dcgm_4(Story())) + b"bye\n", b"CUDA_VISIBLE_DEVICES is set\n", 0)

    assert answer.said == (BANNER.decode().strip(), "bye", "CUDA_VISIBLE_DEVICES is set")


def test_standard_error_is_no_part_of_the_document() -> None:
    assert read_answer(b"", printed(dcgm_4(Story()))).documents == 0


def test_several_documents_and_iterations_are_read_together() -> None:
    well, failed = dcgm_4(Story()), dcgm_4(FAILED)
    together = {"Overall Result": "Fail", "iterations": [well, None, failed], "warning": "errors"}

    for raw in (printed(well) + b"\n" + printed(failed), printed(together)):
        answer = read_answer(raw)
        assert answer.documents == 2
        assert {("memory", "gpu", 1, "fail"), ("memory", "gpu", 1, "pass")} <= rows(answer)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_document_that_ends_anywhere_is_cut_off_and_never_a_pass(shape: str) -> None:
    raw = printed(SHAPES[shape](Story())).rstrip()

    for end in range(raw.index(b":"), len(raw) - 1, 37):
        answer = read_answer(raw[:end])
        assert (answer.cut_off, answer.documents, answer.results) == (True, 0, ())


def test_complete_iterations_of_a_cut_answer_count() -> None:
    raw = printed({"Overall Result": "Fail", "iterations": [dcgm_4(FAILED), dcgm_4(Story())]})

    answer = read_answer(raw[: len(raw) - 400])

    assert (answer.cut_off, answer.documents) == (True, 1)
    assert ("memory", "gpu", 1, "fail") in rows(answer)


@pytest.mark.parametrize("top", ["DCGM Diagnostic", "DCGM GPU Diagnostic"])
def test_run_without_a_result_gives_the_reason(top: str) -> None:
    answer = read_answer(runtime_error("Error: already\nrunning", top))

    assert (answer.runtime_errors, answer.version, answer.results) == (("Error: already running",), "4.2.3", ())


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"warnings": "a text"}, [DiagError("a text")]),
        ({"warning": "a text"}, [DiagError("a text")]),
        ({"warnings": ["one", "two", 3, None, "one"]}, []),
        ({"warnings": [{"warning": "x", "error_id": "52"}]}, [DiagError("x", 52)]),
        ({"warnings": [{"warnings": "x", "error_id": 52}]}, [DiagError("x", 52)]),
        ({"warnings": {"warning": "x", "error_id": 52}}, []),
        ({"warnings": [{"error_id": 52}]}, [DiagError("", 52)]),
        ({"warnings": [{"error_id": 0}]}, []),
        ({"warnings": [{"warning": {"x": 1}, "error_id": None}]}, []),
        ({"warnings": "x", "error_id": 52, "error_category": 10, "error_severity": 2}, [DiagError("x", 52, 10, 2)]),
        ({"error_id": 52}, [DiagError("", 52)]),
        ({"error_id": 0}, []),
        ({"warnings": [{"warning": "x", "error_id": -52, "error_severity": 1e9}]}, [DiagError("x")]),
        ({"warnings": ""}, []),
        ({"warnings": 7}, []),
    ],
)
def test_an_error_is_read_in_every_form(fields: dict[str, Any], errors: list[DiagError]) -> None:
    results = [{"entity_group": "GPU", "entity_id": 0, "status": "Fail", **fields}]
    answer = read({"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": results}]}]}})

    assert list(answer.results[0].errors) == errors


def test_a_result_has_several_errors() -> None:
    both = Story(errors={("memory", 0): [Said("one", 51), Said("two", 56)]})

    assert [error.id for error in of(read(dcgm_3_3_1(both)), "memory", 0).errors] == [51, 56]


def test_endless_answer_is_read_to_a_limit() -> None:
    flood = printed(dcgm_4(Story())) + b" " * LONGEST_ANSWER
    assert (read_answer(flood).too_long, read_answer(flood).documents) == (True, 1)

    many = [Said(f"error {number} of GPU 0", 51) for number in range(5000)]
    answer = read(dcgm_4(Story(gpus=64, errors={("memory", 0): many})))
    assert len(of(answer, "memory", 0).errors) == 64
    long = read(dcgm_4(Story(errors={("memory", 0): [Said("x" * 100_000, 51)]})))
    assert len(of(long, "memory", 0).errors[0].text) == 600


@pytest.mark.parametrize(
    "raw",
    [
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"DCGM Diagnostic":' * 50_000,
        b'{"DCGM Diagnostic":' + b"9" * 10_000 + b"}",
        b'{"DCGM Diagnostic":null}',
        b'{"DCGM Diagnostic":[1,2]}',
        b'{"DCGM Diagnostic":{"test_categories":{"a":1}}}',
        b'{"iterations":[[],1,null,{}]}',
        b'"DCGM Diagnostic"',
    ],
)
def test_nonsense_has_no_results(raw: bytes) -> None:
    assert read_answer(raw).results == ()


_KEYS = (
    "DCGM Diagnostic|DCGM GPU Diagnostic|test_categories|tests|results|warnings|warning|status|name|gpu_id|gpu_ids|"
    "entity_id|entity_group|entity_groups|entities|serial_num|error_id|test_summary|iterations|metadata|"
    "GPU Device Serials|runtime_error|Pass|Fail|GPU|\ud800"
)
_words = st.sampled_from(_KEYS.split("|"))
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _words
_values = st.recursive(
    _leaves, lambda one: st.lists(one, max_size=4) | st.dictionaries(_words, one, max_size=5), max_leaves=40
)


def is_whole(answer: DiagAnswer) -> None:
    """It can be saved and read back, and every text can be printed on one line."""
    assert saved_and_read(answer) == answer
    texts = [*answer.said, *answer.runtime_errors, answer.version, *answer.serials.values()]
    texts += [error.text for row in answer.results for error in row.errors]
    assert all(text.isprintable() for text in texts)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_read(out: bytes, err: bytes) -> None:
    is_whole(read_answer(out, err, 0))


@given(st.dictionaries(_words, _values, max_size=6))
def test_any_document_is_read(document: dict[str, Any]) -> None:
    is_whole(read_answer(json.dumps(document).encode("utf-8", "surrogatepass")))


@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_a_document_with_any_part_replaced_is_read(shape: str, data: st.DataObject) -> None:
    document = SHAPES[shape](FAILED)
    place: Any = document
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(_values)
            break
        place = place[key]

    is_whole(read(document))
