"""Answer of `diagnose --would-fit FILE`: nodes with room for the pods of a file before they are created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from rich.text import Text

from gpu_healthcheck.diagnosis.answers.pod_fit import NodeAnswer, WouldFit
from gpu_healthcheck.diagnosis.hami.cards import CardUsage
from gpu_healthcheck.diagnosis.hami.fit import CardVerdict
from gpu_healthcheck.healthcheck.text.naming import named

_MOST_NODES, _MOST_NAMED = 40, 5


def page(answers: Iterable[WouldFit]) -> Iterator[Text]:
    """Yield the output in order."""
    for answer in answers:
        yield from _head(answer)
        for node in islice(_best_first(answer.nodes), _MOST_NODES):
            yield from _node(node)
        if len(answer.nodes) > _MOST_NODES:
            yield Text(f"… and {len(answer.nodes) - _MOST_NODES} more nodes: `-o json` lists all.")


def document(answers: Iterable[WouldFit]) -> list[dict[str, Any]]:
    """Return the answer as a document for programs."""
    return [
        {
            "pod": answer.pod,
            "fits": answer.fits,
            "refused": answer.admission.refused,
            "admission": "dry run" if answer.admission.asked else "by rules",
            "admission_not_asked": answer.admission.why_not,
            "webhook_passes_by": answer.admission.passed_by,
            "hami_rules": answer.rules,
            "added": list(answer.added),
            "containers_without_cards": list(answer.unread),
            "nodes": [_node_document(node) for node in answer.nodes],
        }
        for answer in answers
    ]


def _head(answer: WouldFit) -> Iterator[Text]:
    fitting = [node.node for node in answer.nodes if node.fits]
    if answer.admission.refused:
        yield Text(f"{answer.pod} would be rejected: {answer.admission.refused}", "bold red")
        return
    if fitting:
        nodes = named(fitting, _MOST_NAMED)
        yield Text(f"{answer.pod} fits on {len(fitting)} of {len(answer.nodes)} GPU nodes: {nodes}", "bold green")
    else:
        yield Text(f"{answer.pod} fits on none of {len(answer.nodes)} GPU nodes", "bold red")
    by = "the API server's dry run" if answer.admission.asked else "the rules of HAMi 2.10"
    if answer.added:
        yield Text(f"  admission would add, by {by}: {'; '.join(answer.added)}")
    for name in answer.unread:
        yield Text(f"  container {name} would get no card: HAMi ignores its card and memory requests", "bold red")
    if answer.admission.passed_by:
        yield Text(f"  HAMi's webhook would not change it: {answer.admission.passed_by}", "yellow")
    if answer.rules:
        yield Text(f"  cards are {answer.rules}", "dim")
    if answer.admission.why_not:
        yield Text(f"  admission was not run: {answer.admission.why_not}", "dim")


def _node(node: NodeAnswer) -> Iterator[Text]:
    line = Text.assemble("  ", (node.node, "bold"))
    line.append(f"  {_why(node)}", "green" if node.fits else "red")
    yield line
    codes = {card_verdict.uuid: card_verdict for card_verdict in node.verdict.cards} if node.verdict is not None else {}
    for card in node.cards if not node.unregistered else ():
        verdict = codes.get(card.card.uuid)
        message = "no NVIDIA card by its type" if verdict is None else _says(card, verdict)
        fits = verdict is not None and verdict.code is None
        yield Text(f"    {card.card.index} {card.card.uuid}  {message}", "" if fits else "dim")


def _best_first(nodes: Iterable[NodeAnswer]) -> list[NodeAnswer]:
    return sorted(nodes, key=lambda answer: (not answer.fits, len(answer.obstacles), answer.node))


def _why(node: NodeAnswer) -> str:
    messages = [str(obstacle) for obstacle in node.obstacles]
    if node.unregistered:
        messages.append(node.unregistered)
    elif node.verdict is not None and not node.verdict.fits:
        messages.append(f"container {node.verdict.container}: {node.verdict.reason}")
    by_mig = node.verdict is not None and node.verdict.by_mig
    return "; ".join(messages) or ("fits, if HAMi finds a place for the MIG instance" if by_mig else "fits")


def _says(card: CardUsage, verdict: CardVerdict) -> str:
    free = f": {card.free.memory} MiB, {card.free.cores} %, {card.free.slots} slots free"
    return f"{verdict}{free if verdict.code is None else ''}"


def _node_document(node: NodeAnswer) -> dict[str, Any]:
    codes = {each.uuid: each for each in node.verdict.cards} if node.verdict is not None else {}
    return {
        "node": node.node,
        "fits": node.fits,
        "obstacles": [str(obstacle) for obstacle in node.obstacles],
        "hami": None if node.verdict is None else node.verdict.reason or "fits",
        "unregistered": node.unregistered,
        "cards": [
            {
                "uuid": card.card.uuid,
                "memory_mib_free": card.free.memory,
                "cores_percent_free": card.free.cores,
                "slots_free": card.free.slots,
                "code": code.value if (code := codes[card.card.uuid].code) is not None else None,
            }
            for card in node.cards
            if card.card.uuid in codes
        ],
    }
