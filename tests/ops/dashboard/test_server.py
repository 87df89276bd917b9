"""`ehbalance dashboard` as a process: its pages, accepted requests, and exit. `test_browser.py` uses a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_ehbalance.ops.dashboard.page import facts, page
from tests.ops.command import Command, assert_error
from tests.ops.dashboard.groups import make, move
from tests.ops.dashboard.sample_group import view
from tests.ops.dashboard.server import running
from tests.waiting import wait_until


def owners(group: Any) -> dict[str, Any]:
    return {row["partition"]: row["owner"] for row in group["partitions"]}


def test_dashboard_follows_every_groups_moves_and_outages(tmp_path: Path) -> None:
    table, later, away = tmp_path / "leases", tmp_path / "later", tmp_path / "away"
    make(table, "ann", "bob")
    with running(table, later) as dashboard:
        assert owners(dashboard.facts()) == dict.fromkeys("0123", "ann")
        assert f"There is no lease table at {later}" in dashboard.facts(1)["problem"]
        move(table, "2", "bob")
        wait_until(lambda: owners(dashboard.facts())["2"] == "bob", "the move is shown")
        assert dashboard.facts()["history"][0]["event"] == "HandOver"
        make(later, "cat")
        wait_until(lambda: "partitions" in dashboard.facts(1), "the second one is found")
        table.rename(away)
        wait_until(lambda: "table_unreadable" in str(dashboard.facts()["findings"]), "the outage is shown")
        assert owners(dashboard.facts())["2"] == "bob", "what was shown stays"
        away.rename(table)
        wait_until(lambda: "table_unreadable" not in str(dashboard.facts()["findings"]), "it is read again")
        code, output = dashboard.end()
        assert (code, output.count("\n")) == (0, 1), "the outage is one line, and Ctrl-C ends it quietly"


def test_server_accepts_only_get_for_local_host_names(tmp_path: Path) -> None:
    with running(tmp_path / "none") as dashboard:
        code, headers, content = dashboard.request()
        assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"https?:|\*|unsafe", policy)
        for tag in ("script", "style"):
            text = re.findall(rf"<{tag}>(.*?)</{tag}>", content, re.DOTALL)[0]
            assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
        assert not re.search(r"(src|href)=\"(?!data:)", content)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert dashboard.request(method=method)[0] == 501
        for path in ("/", "/facts/0"):
            for host in ("example.org", f"example.org:{dashboard.port}", "127.0.0.1.example.org"):
                assert dashboard.request(path, host=host)[0] == 400
            assert dashboard.request(path, host=f"localhost:{dashboard.port}")[0] == 200
        assert dashboard.request("/../view.py")[0] == dashboard.request("/facts/1")[0] == 404
        assert dashboard.end(signal.SIGTERM) == (0, "")


def test_page_is_saved_as_one_file_and_errors_are_one_line(ehbalance: Command, tmp_path: Path) -> None:
    make(tmp_path / "leases", "ann")
    file = tmp_path / "page.html"
    assert ehbalance("dashboard", tmp_path / "leases", "--save", file).err == f"Saved as {file}.\n"
    (data,) = re.findall(r'id="facts">(.*?)</script>', file.read_text("utf-8"))
    assert owners(json.loads(data)[0]) == dict.fromkeys("0123", "ann")
    assert "There is no lease table" in ehbalance.fails(1, "dashboard", tmp_path / "x", "--save", tmp_path / "y")
    assert not (tmp_path / "y").exists()
    error = ehbalance.fails(1, "dashboard", tmp_path / "leases", "--save", "/nowhere/y")
    assert_error(error, "EHB_FILE_NOT_WRITTEN", "/nowhere/y")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = ehbalance.fails(1, "dashboard", tmp_path / "x", "--port", port)
    assert_error(error, "EHB_PORT_UNAVAILABLE", f"--port {port}", "Address already in use")
    assert "leaseTable" in ehbalance.fails(2, "dashboard", "hdfs://x/y")


def test_foreign_texts_are_escaped_and_truncated() -> None:
    hostile = "</script><img src=x>\x1b]0;owned\x07\u202e" + "x" * 5000
    known = view()
    snapshot = replace(known.snapshot, leases={"0": replace(known.snapshot.leases["0"], owner=hostile)})
    made = page([facts(hostile, replace(known, snapshot=snapshot))])
    assert "<img" not in made
    assert made.count("</script>") == 2
    assert not {"\x1b", "\x07", "\u202e"} & {*made}
    assert "x" * 1001 not in made
