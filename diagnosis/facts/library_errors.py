"""Texts by which programs report errors of CUDA, NVML, NCCL and libfabric, built from the catalogue's tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diagnosis.model import Signature, failing
from healthcheck.catalog.cuda_errors import LibraryError, cuda_errors, library_errors

_CALLS = {"CUDA": r"(?-i:\bcu(?:da)?[A-Z]\w{2,40})", "NVML": r"(?-i:\bnvml[A-Z]\w{2,40})"}
"""Functions of a library. Lower case does not suffice: `current`, `custom`."""
_CONTEXTS = {
    "CUDA": rf"(?:\bCUDA\b|{_CALLS['CUDA']})[^\n]{{0,80}}?\b",
    "NVML": r"(?:NVML|\bnvidia-smi\b)[^\n]{0,120}?[:=(]\s{0,2}",
}
"""Texts before a text that many programs print, as `out of memory`."""
_WORDS = (
    r"\W{0,4}(?:(?:returned|failed|failure|errors?|err|code|status|results?|ret|rc|with|in|call|runtime|driver|api"
    r"|initialization|init|unknown)\b\W{1,4})"
)
"""Words between the library and the number of its error, as in `CUDA failure 802` and `cuInit returned 999`."""
_NO_UNIT = r"\b(?!\s?(?:%|[kmgt]i?b\b|ms\b|us\b|s\b|x\b|bytes\b|times\b|\.\d|/))"
_MANY_WORDS = 4
"""Number of words from which on a text needs no context."""


def reported(cause: str) -> Signature:
    """Return the texts of all errors with this cause, as a container that fails prints them."""
    errors = [error for error in (*cuda_errors(), *library_errors()) if error.cause == cause]
    libraries = dict.fromkeys(error.library for error in errors)
    return failing("|".join(text for error in errors for text in _forms(error)), ", ".join(libraries))


def any_cuda_error() -> Signature:
    """Return the text of any error of CUDA: its name, or the words with which frameworks introduce it."""
    names = (name for error in cuda_errors() if not error.cause for name in error.names)
    return failing(rf"\b(?:{'|'.join(names)})\b|\bCUDA (?:runtime |driver )?(?:API )?(?:error|failure)\b", "CUDA")


def _forms(error: LibraryError) -> Iterator[str]:
    """Yield patterns of the error's names, its number and its messages."""
    context = _CONTEXTS.get(error.library, "")
    for name in error.names:
        yield rf"\b{name}\b"
        if error.library == "NVML":
            # pynvml makes a class of it; without its library, go-nvml prints the name without the prefix.
            words = name.removeprefix("NVML_ERROR_").split("_")
            yield rf"\bNVMLError_{''.join(map(str.capitalize, words))}\b|{context}{name.removeprefix('NVML_')}\b"
    if error.library in _CALLS and error.number is not None:
        between = rf"{_WORDS}{{1,5}}"
        called = rf"{_CALLS[error.library]}(?:\([^)\n]{{0,80}}\))?(?::\s|{between})"
        yield rf"(?:\b{error.library}(?:_ERROR)?\b{between}|{called})\(?{error.number}{_NO_UNIT}"
    for message in error.messages:
        is_known = len(message.split()) >= _MANY_WORDS
        if is_known or context:
            yield rf"{'' if is_known else context}{re.escape(message)}(?!\w)"
