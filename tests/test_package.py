"""Wheels that `make package` rejects, and the page on PyPI."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_package.py"))
HOOK = runpy.run_path(str(ROOT / "scripts" / "metadata_hook.py"))

README = "![The page](docs/x.png)See [how it works](docs/design.md#time), [here](#here) and [Spark](https://spark.apache.org)."


def wheel() -> dict[str, bytes]:
    """The files of a valid wheel."""
    tracked = CHECK["tracked"]
    shipped = {f"spark_ehbalance/shipped/{file}": b"" for folder in ("jobs", "conf") for file in tracked(folder)}
    information = {"x.dist-info/METADATA": b"[a](https://b)", "x.dist-info/licenses/LICENSE": b""}
    packages = {file: b"" for package in CHECK["PACKAGES"] for file in tracked(package)}
    return packages | shipped | information


def test_valid_wheel_passes() -> None:
    CHECK["check_wheel"](wheel())


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tests/test_x.py", b"", "the wheel contains tests"),
        ("spark_ehbalance/left_over.py", b"", "differ from the repository's: spark_ehbalance/left_over.py"),
        ("x.dist-info/METADATA", b"[a](docs/b.md)", "links would be broken"),
        ("spark_ehbalance/errors.py", f"# {ROOT}/x".encode(), "spark_ehbalance/errors.py contains the path "),
        ("spark_ehbalance/py.typed", None, "differ from the repository's"),
        ("x.dist-info/licenses/LICENSE", None, "no license"),
    ],
)
def test_invalid_wheel_is_rejected(name: str, content: bytes | None, error: str) -> None:
    files = wheel() | ({} if content is None else {name: content})
    if content is None:
        del files[name]
    with pytest.raises(CHECK["CheckError"], match=error):
        CHECK["check_wheel"](files)


def test_links_become_text_without_an_address() -> None:
    shown = HOOK["long_description"](README, "")
    assert shown == "See how it works, here and [Spark](https://spark.apache.org)."
    assert HOOK["urls"]("") == {}


def test_links_become_absolute_with_an_address() -> None:
    shown = HOOK["long_description"](README, "https://host/o/n")
    assert "[how it works](https://host/o/n/blob/main/docs/design.md#time)" in shown
    assert "![The page](https://host/o/n/raw/main/docs/x.png)" in shown
    assert "[here](#here)" in shown
    assert "[Spark](https://spark.apache.org)" in shown
    assert HOOK["urls"]("https://host/o/n")["Changelog"] == "https://host/o/n/blob/main/CHANGELOG.md"


def test_quick_starts_first_stream_runs_from_its_blocks() -> None:
    found = CHECK["blocks"](CHECK["QUICK_START"].read_text(encoding="utf-8"), CHECK["FIRST_STREAM"])
    assert [language for language, _ in found] == ["sh", "sh", "python", "sh", "sh", "python", "sh", "sh", "text"]
    assert found[-2][1].splitlines()[-1] == CHECK["COUNT"]
