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
    """Judge and show the cycle; returns the exit code. Raises CaptureError if it is none, or has invalid values."""
    name = options.files[0]
    try:
        result = judged(_look(raw, options.instance_type, here))
    except EvidenceError as error:
        raise CaptureError(f"{name}: {error}") from error
    except (ArithmeticError, ValueError) as error:  # such as 1e300 seconds: valid JSON, but never a probe's value
        raise CaptureError(f"{name}: its values are invalid: {error}") from error
    standing = tuple(_sourced(finding, name) for finding in result.memory.standing)
    result = replace(result, memory=replace(result.memory, standing=standing))
    show(result, options.form, verbose=options.verbose)
    return EXIT_CODES[result.verdict.status]


def _look(raw: bytes, instance_type: str, here: LocalSettings) -> EvidenceCycle:
    """Return the saved cycle; with `instance_type`, the expectations are that type's profile on this machine."""
    look = evidence_file.read(raw)
    if not instance_type:
        return look
    profile = find_profile(here.profiles, instance_type)
    return replace(look, expected=replace(look.expected, instance_type=instance_type, profile=profile))


def _sourced(standing: ActiveFinding, name: str) -> ActiveFinding:
    """Return the row of a level finding: its evidence is the whole file, and its rule that of its check."""
    finding = standing.finding
    return replace(standing, finding=replace(finding, source=name, rule=finding.rule or standing.check))
