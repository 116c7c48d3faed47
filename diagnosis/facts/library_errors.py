"""Texts by which programs report errors of CUDA, NVML, NCCL and libfabric, built from the catalogue's tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.model import Signature, failing
from gpu_healthcheck.healthcheck.catalog.cuda_errors import LibraryError, cuda_errors, library_errors

_CALL = r"(?-i:\bcu(?:da)?[A-Z]\w{2,40})"
"""Function of CUDA. Lower case does not suffice: `current`, `custom`."""
_WORDS = (
    r"\W{0,4}(?:(?:returned|failed|failure|errors?|err|code|status|results?|ret|rc|with|in|call|runtime|driver|api"
    r"|initialization|init|unknown|library|to|get|device|context)\b\W{1,4})"
)
"""Words between CUDA and the number of its error, as in `CUDA failure 802` and `cuInit returned 999`."""
_FAILED = rf"(?:{_WORDS}{{0,3}}\W{{0,4}}(?:error|fail(?:ure|ed))\b[^\n]{{0,60}}?|\W{{0,4}})\b"
_CONTEXTS = {
    "CUDA": rf"(?:(?:\bCUDA\b|{_CALL}){_FAILED}|might have already set an error\? Error \d{{1,3}}: )",
    "NVML": r"(?:NVML|\bnvidia-smi\b)[^\n]{0,120}?[:=(]\s{0,2}",
}
"""Texts before a text that many programs print, as `out of memory`."""
_NO_UNIT = r"\b(?!\s?(?:%|[kmgt]i?b\b|ms\b|us\b|s\b|x\b|bytes\b|times\b|\.\d|/))"
_TELLING = 30
"""Smallest number of an error of CUDA that is recognised without a text."""
_MANY_WORDS = 4
"""Number of words from which on a text needs no context."""
_ANY = r"\bCUDA_ERROR_[A-Z_]{3,60}\b|\bcudaError[A-Z]\w{2,60}|\bCUDA (?:runtime |driver )?(?:API )?(?:error|failure)\b"


def reported(cause: str) -> tuple[Signature, ...]:
    """Return the texts of all errors with this cause, as a container that fails prints them."""
    errors = [error for error in (*cuda_errors(), *library_errors()) if error.cause == cause]
    return tuple(text for error in errors for text in (_in_words(error), *_by_number(error)))


def any_cuda_error() -> Signature:
    """Return the text of any error of CUDA: its name, or the words with which frameworks introduce it."""
    return replace(failing(_ANY, "CUDA"), literals=("cuda",))


def _in_words(error: LibraryError) -> Signature:
    """Return the text of an error's names and messages."""
    literals, patterns = [], []
    context = _CONTEXTS.get(error.library, "")
    for name in _names(error):
        literals.append(name)
        patterns.append(rf"{context if name.startswith('ERROR_') else ''}\b{name}\b")
    for message in error.messages:
        is_known = len(message.split()) >= _MANY_WORDS
        if is_known or context:
            literals.append(message)
            patterns.append(rf"{'' if is_known else context}{re.escape(message)}(?!\w)")
    lowered = tuple(literal.lower() for literal in literals)
    return replace(failing("|".join(patterns), error.library), literals=lowered)


def _names(error: LibraryError) -> Iterator[str]:
    """Yield the error's names, also as pynvml names its class, and go-nvml prints them without the library."""
    yield from error.names
    if error.library == "NVML":
        for name in error.names:
            short = name.removeprefix("NVML_")
            yield short
            yield f"NVMLError_{''.join(map(str.capitalize, short.removeprefix('ERROR_').split('_')))}"


def _by_number(error: LibraryError) -> Iterator[Signature]:
    """Yield the text of an error that is reported by its number."""
    if error.library == "CUDA" and error.number is not None and error.number >= _TELLING:
        between = rf"{_WORDS}{{1,7}}"
        called = rf"{_CALL}(?:\([^)\n]{{0,80}}\))?(?:[:=]\s?|{between})"
        number = rf"(?:\bCUDA(?:_ERROR)?\b{between}|{called})\(?{error.number}{_NO_UNIT}|\(error {error.number}\)"
        yield replace(failing(number, error.library), literals=(str(error.number),))
