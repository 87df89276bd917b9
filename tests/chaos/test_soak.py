"""A short soak: no commit of several writers is lost."""

from __future__ import annotations

from pathlib import Path

from chaos.soak import MOST_LEFT, soak


def test_no_commit_of_several_writers_is_lost(tmp_path: Path) -> None:
    run = soak(tmp_path, 3, 150)
    assert run.commits == 150
    assert run.lost == 0
    assert run.left <= MOST_LEFT < run.files
