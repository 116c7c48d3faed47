"""Texts with any damage: objects are read and judged, or the text is refused. No value of them has an effect."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from gpu_healthcheck.diagnosis.causes.copied_logs import is_known
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.snapshot import Builder
from gpu_healthcheck.diagnosis.sources.pasted import NothingRecognisedError
from gpu_healthcheck.diagnosis.sources.texts import Texts
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from tests.diagnosis import test_pasted
from tests.fuzz.damage import byte_damages, damaged

_PARTS = (*(text for text, _, _ in test_pasted.CASES.values()), test_pasted.DESCRIBED_NODE, "```\n", "> ", "\n\n")


def any_text_is_judged_or_refused(parts: Sequence[str], damages: Sequence[tuple[int, int, bytes]]) -> None:
    texts, builder = Texts(is_known), Builder()
    try:
        content = texts.take("-", bytearray(damaged("".join(parts).encode(), damages)))
    except NothingRecognisedError:
        return
    for one in content.objects:
        builder.add(one["kind"], one)
    snapshot = texts.into(builder.build(content.at or EARLIEST))
    for problem in diagnose(snapshot).problems:
        assert "".join((problem.found.subject, *problem.found.evidence, *problem.found.steps)).isprintable()


texts = {
    "parts": st.lists(st.sampled_from(_PARTS) | st.text(max_size=60), max_size=5),
    "damages": st.just([]) | st.lists(byte_damages, max_size=4),
}
