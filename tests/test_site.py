"""The documentation's site: its links, and what finds broken ones. `make docs` builds the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_site import misread, problems
from scripts.draw_pictures import FOLDER, pictures
from scripts.site_hooks import with_links


@pytest.mark.parametrize(
    ("path", "link", "in_site"),
    [
        ("README.md", "docs/options.md#options-of-a-strategy", "options.md#options-of-a-strategy"),
        ("README.md", "docs/index.md", "all-pages.md"),
        ("README.md", "jobs/stream_to_delta.py", "files/jobs/stream_to_delta.py.md"),
        ("docs/index.md", "../README.md#read-on", "index.md#read-on"),
        ("docs/options.md", "operations.md#secrets", "operations.md#secrets"),
        ("docs/options.md", "../conf/stream_to_delta.conf", "files/conf/stream_to_delta.conf.md"),
        ("docs/options.md", "#change-the-tables", "#change-the-tables"),
        ("docs/options.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/options.md", "no-such-page.md", "no-such-page.md"),
    ],
)
def test_links_lead_to_where_a_file_is_in_the_site(path: str, link: str, in_site: str) -> None:
    assert with_links(f"See [it]({link}).", path) == f"See [it]({in_site})."


@pytest.mark.parametrize("code", ["`[it](../README.md)`", "```\n[it](../README.md)\n```\n"])
def test_code_stays_as_it_is(code: str) -> None:
    assert with_links(code, "docs/options.md") == code


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<a href='other.html#there'>", None),
        ("<a href='#here' id='here'>", None),
        ("<a href='https://example.com/'>", None),
        ("<a href='missing.html'>", "missing.html leads nowhere"),
        ("<img src='pictures/missing.svg'>", "pictures/missing.svg leads nowhere"),
        ("<a href='other.html#missing'>", "other.html#missing: the page has no such anchor"),
        ("<a href='#missing'>", "#missing: the page has no such anchor"),
        ("<script src='https://example.com/a.js'></script>", "loads https://example.com/a.js from another host"),
        ("<link rel='stylesheet' href='//example.com/a.css'>", "loads //example.com/a.css from another host"),
    ],
)
def test_what_is_wrong_in_a_page_is_found(tmp_path: Path, body: str, problem: str | None) -> None:
    (tmp_path / "other.html").write_text("<h1 id='there'>")
    (tmp_path / "page.html").write_text(body)
    assert problems(tmp_path) == ([f"page.html: {problem}"] if problem else [])


def test_lists_that_are_read_in_another_way_are_found() -> None:
    source = "1. one\n\n- two\n\n| a |\n|---|\n| b |\n"
    items, table = "<ol><li>one</li></ol><ul><li>two</li></ul>", "<table><tr></tr><tr></tr></table>"
    assert misread(source, f"<nav><li></nav><article>{items}{table}</article>") == []
    assert misread(source, f"<article>{items}</article>") == ["has 0 <tr> instead of 2"]
    merged = "<ol><li>one</li><li>two</li></ol>"
    assert misread(source, f"<article>{merged}{table}</article>") == ["has 0 <ul> instead of 1"]


def test_a_site_without_pages_is_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path)


def test_the_pictures_are_those_that_the_script_draws() -> None:
    """If not, look at what has changed, and run scripts/draw_pictures.py."""
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    del found["life-of-an-event.svg"]  # drawn by hand
    assert found == pictures()
