"""`gpu-healthcheck mcp`: its tools over stdio with the client of the `mcp` package, against a stand-in of the API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent

from gpu_healthcheck.cli import mcp_server
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import ROOT, P, run

NODES = ("gpu-node-1", "gpu-node-2")
XID_79 = "[   12.345678] NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus.\n"
OPTION = "--kubeconfig=/etc/passwd"
ESCAPE = "\x1b[31mred\x1b]0;title\x07"
Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def api() -> Iterator[ApiStandIn]:
    with ApiStandIn(*NODES) as api:
        for name in NODES:
            labels = {f"{P}/status": "pass", f"{P}/severity": "PASS", "pool": name[-1]}
            api.edit_node(name, {"metadata": {"labels": labels}})
        yield api


@pytest.fixture(scope="module")
def kubeconfig(api: ApiStandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.kubeconfig(tmp_path_factory.mktemp("mcp") / "config")


def call_all(calls: Sequence[Call], *words: str) -> list[CallToolResult]:
    """Call the tools one after the other, in one session with a server of its own."""

    async def session() -> list[CallToolResult]:
        async with Client(stdio_client(server(*words))) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(session)


def server(*words: str) -> StdioServerParameters:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "CONFIG_DIR": "/nowhere"}
    return StdioServerParameters(command=sys.executable, args=["-m", "cli", "mcp", *words], env=environment, cwd=ROOT)


def text_of(result: CallToolResult) -> str:
    """Return all text that the client gets."""
    assert all(isinstance(block, TextContent) for block in result.content)
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def test_tools_are_four_and_read_only() -> None:
    async def session() -> Any:
        async with Client(stdio_client(server())) as client:
            return client.server_info, (await client.list_tools()).tools

    info, tools = anyio.run(session)

    assert info.name == "gpu-healthcheck"
    assert {tool.name: sorted(tool.input_schema["properties"]) for tool in tools} == {
        "status": ["node", "selector"],
        "diagnose": ["kind", "name", "namespace"],
        "explain": ["word"],
        "replay": ["log"],
    }
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
    assert all(tool.description and "  " not in tool.description for tool in tools)


ANSWERED: dict[str, tuple[Call, tuple[str, ...]]] = {
    "fleet": (("status", {}), ("status",)),
    "selector": (("status", {"selector": "pool=2"}), ("status", "-l", "pool=2")),
    "node": (("status", {"node": "gpu-node-1"}), ("status", "gpu-node-1")),
    "cluster": (("diagnose", {}), ("diagnose",)),
    "one node": (("diagnose", {"kind": "node", "name": "gpu-node-1"}), ("diagnose", "node", "gpu-node-1")),
    "code": (("explain", {"word": "79"}), ("explain", "79")),
    "message": (("explain", {"word": "cuda 802"}), ("explain", "cuda", "802")),
}


def test_answers_are_those_of_the_commands(api: ApiStandIn, kubeconfig: Path) -> None:
    answers = call_all([call for call, _ in ANSWERED.values()], "--kubeconfig", str(kubeconfig))
    printed = [run(kubeconfig, *words, "-o", "json") for _, words in ANSWERED.values()]

    assert [answer.is_error for answer in answers] == [False] * len(ANSWERED)
    shown = [_without_times(answer.content[0].text) for answer in answers if isinstance(answer.content[0], TextContent)]
    assert shown == [_without_times(done.stdout) for done in printed]
    assert [row["node"] for row in shown[1]["nodes"]] == ["gpu-node-2"]
    assert api.writes == []


def _without_times(text: str) -> Any:
    """Return the document without the times of its reading."""
    document = json.loads(text)
    return {key: value for key, value in document.items() if key not in {"now", "at", "timestamp"}}


def test_replay_judges_the_text() -> None:
    faulty, healthy, empty = call_all(
        [
            ("replay", {"log": XID_79}),
            ("replay", {"log": "[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20\n"}),
            ("replay", {"log": ""}),
        ]
    )

    record = json.loads(text_of(faulty))
    assert (record["status"], record["findings"][0]["reason"]) == ("fail", "Xid79")
    assert record["findings"][0]["source"] == "log:1"
    assert json.loads(text_of(healthy))["status"] == "pass"
    assert empty.is_error


REFUSED: dict[str, tuple[Call, str]] = {
    "option as node": (("status", {"node": OPTION}), "no argument may begin with a dash"),
    "option as selector": (("status", {"selector": OPTION}), "no argument may begin with a dash"),
    "option as kind": (("diagnose", {"kind": OPTION, "name": "x"}), "no argument may begin with a dash"),
    "option as name": (("diagnose", {"kind": "node", "name": OPTION}), "no argument may begin with a dash"),
    "option as namespace": (("diagnose", {"namespace": OPTION}), "no argument may begin with a dash"),
    "option as word": (("explain", {"word": OPTION}), "no argument may begin with a dash"),
    "second line as option": (("explain", {"word": f"79\n{OPTION}"}), "unknown name"),
    "NUL": (("explain", {"word": "79\0"}), r"unknown name '79\\x00'"),
    "escape codes": (("explain", {"word": ESCAPE}), r"\\x1b[31mred\\x1b]0;title\\x07"),
    "path as node": (("status", {"node": "../../namespaces"}), "is not a valid node name"),
    "10 MB": (("replay", {"log": "x" * 10_000_000}), "more than 1048576"),
    "unknown node": (("status", {"node": "gpu-node-9"}), "there is no node gpu-node-9"),
    "unknown argument type": (("explain", {"word": ["79"]}), "should be a valid string"),
}


def test_hostile_arguments_are_refused(api: ApiStandIn, kubeconfig: Path) -> None:
    results = call_all([call for call, _ in REFUSED.values()], "--kubeconfig", str(kubeconfig))
    answers = dict(zip(REFUSED, map(text_of, results), strict=True))

    assert [name for name, result in zip(REFUSED, results, strict=True) if not result.is_error] == []
    assert {name: text for name, text in answers.items() if REFUSED[name][1] not in text} == {}
    assert [name for name, text in answers.items() if "\x1b" in text or "root:" in text or len(text) > 5000] == []
    assert api.writes == []


def test_text_of_a_log_reaches_no_terminal_and_no_option() -> None:
    option, escaped = call_all([("replay", {"log": OPTION}), ("replay", {"log": XID_79.replace("pid=1", ESCAPE)})])

    assert json.loads(text_of(option))["status"] == "unknown"
    assert (json.loads(text_of(escaped))["status"], "\x1b" in text_of(escaped)) == ("fail", False)


def test_answer_of_a_large_fleet_is_cut(tmp_path: Path) -> None:
    with ApiStandIn(*(f"gpu-node-{number}" for number in range(400))) as api:
        (answer,) = call_all([("status", {})], "--kubeconfig", str(api.kubeconfig(tmp_path / "config")))

    assert not answer.is_error
    assert text_of(answer).endswith("Cut after 64 KiB. Ask for one node, label selector, namespace or object.")
    assert len(text_of(answer)) < 66_000


def test_context_of_the_server_is_that_of_its_commands(kubeconfig: Path) -> None:
    (without,) = call_all([("status", {})])
    (other,) = call_all([("status", {})], "--kubeconfig", str(kubeconfig), "--context", "elsewhere")
    (own,) = call_all([("status", {})], "--kubeconfig", str(kubeconfig), "--context", "stand-in")

    assert (without.is_error, other.is_error, own.is_error) == (True, True, False)
    assert "can't connect to a cluster" in text_of(without)
    assert "elsewhere" in text_of(other)


def test_command_past_the_deadline_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "_DEADLINE_SECONDS", 0.0)

    with pytest.raises(ToolError, match=r"gpu-healthcheck explain: no end within 0 s; its process was ended"):
        mcp_server.Tools().explain("79")


def test_missing_extra_is_named() -> None:
    program = "import sys; sys.modules['mcp'] = None; from gpu_healthcheck.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "mcp"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, "")
    assert "pip install 'gpu-healthcheck[mcp]'" in done.stderr
