"""Judge and show a saved check cycle, for `gpu-healthcheck replay` of the output of `check --save-evidence`."""

from __future__ import annotations

from msgspec.structs import replace

from cli.local_settings import LocalSettings
from cli.one_cycle import judged, show
from cli.replay import ReplayOptions
from cli.words import EXIT_CODES
from healthcheck.captures import evidence_file
from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.evidence_file import EvidenceCycle, EvidenceError
from healthcheck.catalog.profiles import find_profile
from healthcheck.memory.findings import ActiveFinding


def judge_look(raw: bytes, options: ReplayOptions, here: LocalSettings) -> int:
    """Returns the exit code. Raises CaptureError where it is no look, or one of nonsense."""
    name = options.files[0]
    try:
        result = judged(_look(raw, options.instance_type, here))
    except EvidenceError as error:
        raise CaptureError(f"{name}: {error}") from error
    except (ArithmeticError, ValueError) as error:  # such as 1e300 seconds: JSON can say it and no probe ever does
        raise CaptureError(f"{name}: its values make no sense: {error}") from error
    standing = tuple(_sourced(finding, name) for finding in result.memory.standing)
    result = replace(result, memory=replace(result.memory, standing=standing))
    show(result, options.form, verbose=options.verbose)
    return EXIT_CODES[result.verdict.status]


def _look(raw: bytes, instance_type: str, here: LocalSettings) -> EvidenceCycle:
    """The look as it was saved, its expectations too; with another instance type, that one's profile of here."""
    look = evidence_file.read(raw)
    if not instance_type:
        return look
    profile = find_profile(here.profiles, instance_type)
    return replace(look, expected=replace(look.expected, instance_type=instance_type, profile=profile))


def _sourced(standing: ActiveFinding, name: str) -> ActiveFinding:
    """A level rests on the file as a whole, and the rule is its check's."""
    finding = standing.finding
    return replace(standing, finding=replace(finding, source=name, rule=finding.rule or standing.check))
