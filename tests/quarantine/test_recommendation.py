"""Recommendation of a quarantine run: every row of the table, the row that wins, and that there always is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.model import Finding, Severity, Status
from gpu_healthcheck.quarantine.recommendation import TABLE, GroupResult, Recommendation, Returned, RunResult, recommend

L4, NCCL, EFA = "4-dcgm-diag-l4", "5-nccl-allreduce", "6-efa-loopback"
GPU, NIC = "gpu/0000:53:00.0", "efa/rdmap16s0"


def results(
    level_4: Status | None = Status.PASS, nccl: Status | None = Status.PASS, efa: Status | None = Status.PASS
) -> tuple[GroupResult, ...]:
    return GroupResult(L4, level_4), GroupResult(NCCL, nccl), GroupResult(EFA, efa)


PASSED = RunResult(results())


def fault(severity: Severity, reason: str = "Xid79", subject: str = GPU) -> Finding:
    return Finding(reason, severity, subject, "as it was seen")


def of_table(row: int) -> str:
    return TABLE[row].when


ROWS = [
    (replace(PASSED, found=(fault(Severity.ISOLATE),)), f"{of_table(0)}: Xid79 on {GPU}"),
    (
        replace(PASSED, found=(fault(Severity.RESET),), returned_with=(Returned("Xid79", GPU),)),
        f"{of_table(1)}: Xid79 on {GPU}",
    ),
    (replace(PASSED, found=(fault(Severity.REBOOT),)), f"{of_table(2)}: Xid79 on {GPU}"),
    (replace(PASSED, found=(fault(Severity.RESET),)), f"{of_table(3)}: Xid79 on {GPU}"),
    (RunResult(results(nccl=None, efa=None)), f"{of_table(4)}: {NCCL}, {EFA}"),
    (RunResult(results(level_4=Status.NOT_CONFIGURED)), f"{of_table(5)}: {L4}"),
    (RunResult(results(efa=Status.UNKNOWN)), f"{of_table(6)}: {EFA}"),
    (RunResult(results(nccl=Status.FAIL)), f"{of_table(7)}: {NCCL}"),
    (replace(PASSED, found=(fault(Severity.MONITOR),)), f"{of_table(8)}: Xid79 on {GPU}"),
    (PASSED, f"{of_table(9)}: {L4}, {NCCL}, {EFA}"),
]


@pytest.mark.parametrize(("row", "run", "reason"), [(row, *case) for row, case in enumerate(ROWS)])
def test_every_row_of_the_table_has_a_run_that_it_is_for(row: int, run: RunResult, reason: str) -> None:
    advice = recommend(run)

    assert (advice.recommendation, advice.reasons[0]) == (TABLE[row].recommendation, reason)


def test_every_row_is_tried_and_the_worst_stands_first() -> None:
    ladder = list(Recommendation)

    assert len(ROWS) == len(TABLE)
    assert [ladder.index(row.recommendation) for row in TABLE] == sorted(
        ladder.index(row.recommendation) for row in TABLE
    )
    assert {row.recommendation for row in TABLE} == set(Recommendation)


def test_the_words_are_those_of_the_documents() -> None:
    assert {word.value for word in Recommendation} == {"return-to-service", "reset", "reboot", "replace", "rerun"}


def test_the_worst_of_all_wins_and_says_all_that_speaks_for_it() -> None:
    run = RunResult(
        results(level_4=Status.FAIL, efa=None),
        found=(fault(Severity.RESET, "DcgmDiagMemory"), fault(Severity.ISOLATE, "EfaLoopbackCorrupt", NIC)),
        active_events=(fault(Severity.REBOOT),),
        returned_with=(Returned("DcgmDiagMemory", GPU),),
    )

    assert recommend(run).recommendation is Recommendation.REPLACE
    assert recommend(run).reasons == (
        f"{of_table(0)}: EfaLoopbackCorrupt on {NIC}",
        f"{of_table(1)}: DcgmDiagMemory on {GPU}",
    )


@pytest.mark.parametrize(
    ("severity", "recommendation"),
    [
        (Severity.MONITOR, Recommendation.RETURN_TO_SERVICE),
        (Severity.RESET, Recommendation.RESET),
        (Severity.REBOOT, Recommendation.REBOOT),
        (Severity.ISOLATE, Recommendation.REPLACE),
    ],
)
def test_what_still_stands_after_a_run_that_is_done_counts_as_if_it_were_found(
    severity: Severity, recommendation: Recommendation
) -> None:
    assert recommend(replace(PASSED, active_events=(fault(severity),))).recommendation is recommendation


@pytest.mark.parametrize("severity", [Severity.RESET, Severity.REBOOT, Severity.ISOLATE])
def test_a_run_that_was_killed_leaves_what_stood_before_to_the_next_one(severity: Severity) -> None:
    killed = RunResult(results(efa=None), active_events=(fault(severity),))

    assert recommend(killed).recommendation is Recommendation.RERUN


def test_a_run_that_was_killed_after_it_had_found_a_fault_recommends_by_that_and_by_what_stood_before() -> None:
    killed = RunResult(results(level_4=Status.FAIL, efa=None), (fault(Severity.RESET, "DcgmDiagMemory"),))
    before = (fault(Severity.REBOOT),)

    assert recommend(killed).recommendation is Recommendation.RESET
    assert recommend(replace(killed, active_events=before)).recommendation is Recommendation.REBOOT


def test_a_test_that_does_not_belong_to_the_node_speaks_neither_for_nor_against_it() -> None:
    bare = RunResult(results(nccl=Status.NOT_CONFIGURED, efa=Status.NOT_CONFIGURED))

    assert recommend(bare).reasons == (f"{of_table(9)}: {L4}",)
    assert recommend(bare).recommendation is Recommendation.RETURN_TO_SERVICE


def test_without_level_4_nothing_is_proved() -> None:
    assert recommend(RunResult(())).recommendation is Recommendation.RERUN
    assert recommend(RunResult((GroupResult(EFA, Status.PASS),))).recommendation is Recommendation.RERUN


@pytest.mark.parametrize(("severity", "replaced"), [(Severity.MONITOR, False), (Severity.RESET, True)])
def test_only_a_fault_that_kept_the_node_away_escalates_when_it_comes_back(severity: Severity, replaced: bool) -> None:
    run = replace(PASSED, found=(fault(severity),), returned_with=(Returned("Xid79", GPU),))

    assert (recommend(run).recommendation is Recommendation.REPLACE) == replaced


def test_the_same_fault_of_another_device_did_not_come_back() -> None:
    other = replace(PASSED, found=(fault(Severity.RESET),), returned_with=(Returned("Xid79", "gpu/0000:64:00.0"),))

    assert recommend(other).recommendation is Recommendation.RESET


FINDINGS = st.lists(
    st.builds(
        fault,
        st.sampled_from(list(Severity)),
        st.sampled_from(["Xid79", "EfaLoopbackSlow"]),
        st.sampled_from([GPU, NIC]),
    )
).map(tuple)
STATUSES = st.one_of(st.none(), st.sampled_from(list(Status)))
RUNS = st.builds(
    RunResult,
    st.lists(st.builds(GroupResult, st.sampled_from([L4, NCCL, EFA]), STATUSES), max_size=4).map(tuple),
    FINDINGS,
    FINDINGS,
    st.lists(st.builds(Returned, st.sampled_from(["Xid79", "EfaLoopbackSlow"]), st.sampled_from([GPU, NIC]))).map(
        tuple
    ),
)


@given(RUNS)
def test_whatever_a_run_knows_there_is_one_recommendation_with_its_reason(run: RunResult) -> None:
    advice = recommend(run)

    assert advice.reasons
    if advice.recommendation is Recommendation.RETURN_TO_SERVICE:
        assert run.finished
        assert all(finding.severity < Severity.RESET for finding in (*run.found, *run.active_events))
