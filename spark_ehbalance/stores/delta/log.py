"""Checks of the table's log, file by file: delta-rs takes some damage for a commit of nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import pairwise

from spark_ehbalance.stores.delta.folder import Folder

LOG = "_delta_log"

#: The file that names the newest checkpoint.
HINT = "_last_checkpoint"


def commit_file(version: int) -> str:
    """The name of the log file that makes `version`."""
    return f"{LOG}/{version:020}.json"


def log_problem(content: bytes) -> str:
    """What is wrong with a log file: it is empty, cut off, or a write that adds nothing. Empty if it is sound."""
    try:
        actions = [json.loads(line) for line in content.decode().splitlines() if line.strip()]
        kinds = {kind for action in actions for kind in action}
        writes = any(action.get("commitInfo", {}).get("operation") == "WRITE" for action in actions)
    except (ValueError, TypeError, AttributeError):
        return "cannot be read"
    if not actions:
        return "is empty"
    return "is cut off" if writes and not kinds & {"add", "remove"} else ""


def log_problems(folder: Folder) -> Iterator[tuple[str, str]]:
    """The files of the log that cannot be read, or that need one that is missing, each with its problem; the newest
    first."""
    names = [file.name for file in folder.listed(LOG)]
    for name in reversed(names):
        path = f"{LOG}/{name}"
        if name.endswith(".json") and (problem := log_problem(folder.read(path))):
            yield path, problem
        elif name.endswith(".parquet"):
            try:
                folder.parquet(path)
            except (ValueError, OSError):
                yield path, "cannot be read"
    yield from _missing(folder, names)


def _missing(folder: Folder, names: list[str]) -> Iterator[tuple[str, str]]:
    versions = [(int(name[:20]), name) for name in names if name[:20].isdigit()]
    checkpoint = max((version for version, name in versions if ".checkpoint." in name), default=-1)
    if HINT in names:
        with contextlib.suppress(ValueError, AttributeError):
            if json.loads(folder.read(f"{LOG}/{HINT}")).get("version") != checkpoint:
                yield f"{LOG}/{HINT}", "names a checkpoint that is missing"
    commits = [checkpoint, *sorted(v for v, name in versions if name.endswith(".json") and v > checkpoint)]
    for before, after in pairwise(commits):
        if after != before + 1:
            yield commit_file(after), "follows on a file that is missing"
            return
