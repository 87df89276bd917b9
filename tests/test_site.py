"""The links of the documentation's site. `make docs` builds it."""

from __future__ import annotations

import pytest

from scripts.site_hooks import with_links


@pytest.mark.parametrize(
    ("path", "link", "in_site"),
    [
        ("README.md", "docs/options.md#options-of-a-strategy", "options.md#options-of-a-strategy"),
        ("README.md", "docs/index.md", "all-pages.md"),
        ("docs/index.md", "../README.md#read-on", "index.md#read-on"),
        ("docs/options.md", "operations.md#secrets", "operations.md#secrets"),
        ("docs/options.md", "#change-the-tables", "#change-the-tables"),
        ("docs/options.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/options.md", "no-such-page.md", "no-such-page.md"),
    ],
)
def test_links_lead_to_the_files_page_on_the_site(path: str, link: str, in_site: str) -> None:
    assert with_links(f"See [it]({link}).", path) == f"See [it]({in_site})."


def test_link_to_another_file_in_the_repository_becomes_text() -> None:
    assert with_links("See [the job](../jobs/stream_to_delta.py).", "docs/options.md") == "See the job."


@pytest.mark.parametrize("code", ["`[it](../README.md)`", "```\n[it](../README.md)\n```\n"])
def test_code_is_unchanged(code: str) -> None:
    assert with_links(code, "docs/options.md") == code
