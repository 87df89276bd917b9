"""What a check has found."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Verdict(str, Enum):
    """Whether a stream can be run as things are."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """One line of the check: `text` says what was found, `remedy` what to do about it, if there is anything."""

    what: str
    verdict: Verdict
    text: str
    remedy: str = ""


def ok(what: str, text: str) -> Finding:
    """All is well."""
    return Finding(what, Verdict.OK, text)


def warning(what: str, text: str, remedy: str) -> Finding:
    """A stream runs, but not as well as it could."""
    return Finding(what, Verdict.WARNING, text, remedy)


def failed(what: str, text: str, remedy: str) -> Finding:
    """A stream does not run, or not safely."""
    return Finding(what, Verdict.FAILED, text, remedy)
