"""`ehbalance dashboard` as a process: what it serves, to whom, and how it ends. Browsers: `test_browser.py`."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.dashboard import watcher
from spark_ehbalance.dashboard.board import Board
from spark_ehbalance.dashboard.watcher import Watcher
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta import DeltaStore
from tests.cli.command import Command
from tests.dashboard.groups import make, move
from tests.dashboard.server import running
from tests.waiting import wait_until

KEY = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2Vjcg=="


@pytest.fixture
def ehbalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def owners(group: Any) -> dict[str, Any]:
    """Who owns which partition, by the part of the news about a group."""
    return {each["id"]: each["owner"] for each in group["sections"]["group"]["partitions"]}


def told(news: Iterator[Any], number: int, **owned: str) -> Any:
    """The first news by which partitions of the group with this number have these owners."""
    found = (each["groups"][number] for each in news)
    wanted = {partition.removeprefix("p"): owner for partition, owner in owned.items()}
    return next(each for each in found if "group" in each["sections"] and wanted.items() <= owners(each).items())


def test_a_viewer_is_told_of_each_group_and_of_its_moves(tmp_path: Path) -> None:
    table, later = tmp_path / "leases", tmp_path / "later"
    make(table, "ann", "bob")
    with running(table, later) as dashboard:
        with dashboard.news() as news:
            assert owners(told(news, 0)) == dict.fromkeys("0123", "ann")
            missing = next(problem for each in news if (problem := each["groups"][1]["problem"]))
            assert (
                missing
                == f"there is no lease table at {later}: if there was one, put it back; else `ehbalance init` makes one"
            )
            move(table, "2", "bob")
            assert owners(told(news, 0, p2="bob")) == {"0": "ann", "1": "ann", "2": "bob", "3": "ann"}
            make(later, "cat")
            shown = told(news, 1)
            assert (shown["problem"], owners(shown)) == (None, dict.fromkeys("0123", "cat"))
        assert dashboard.end() == (0, ""), "Ctrl-C ends it quietly"


def test_only_get_by_this_machines_names_and_nothing_of_elsewhere(tmp_path: Path) -> None:
    with running(tmp_path / "none") as dashboard:
        code, headers, page = dashboard.request()
        assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"https?:|\*|unsafe", policy)
        for name in [*re.findall(r'(?:src|href)="([^"]+)"', page), "text.js", "charts.js", "group.js"]:
            code, headers, content = dashboard.request(f"/{name}")
            assert (code, headers["content-security-policy"]) == (200, policy), name
            assert not re.sub(r"http://www.w3.org/2000/svg", "", content).count("://"), name
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert dashboard.request(method=method)[0] == 405
        for path in ("/", "/events"):
            for host in ("example.org", f"example.org:{dashboard.port}", "127.0.0.1.example.org"):
                assert dashboard.request(path, host=host)[0] == 400
        assert dashboard.request(host=f"localhost:{dashboard.port}")[0] == 200
        assert dashboard.request("/../view.py")[0] == 404
        assert dashboard.end() == (0, "")


def test_it_ends_though_a_viewer_takes_nothing(tmp_path: Path) -> None:
    make(tmp_path / "leases", *("x" * 10_000 + str(number) for number in range(300)))
    with running(tmp_path / "leases") as dashboard, dashboard.news() as news, socket.socket() as suspended:
        told(news, 0)
        suspended.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        suspended.connect(("127.0.0.1", dashboard.port))
        suspended.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert suspended.recv(8) == b"HTTP/1.1"
        assert dashboard.end() == (0, "")


def test_no_secret_is_on_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    options = ("account_name=acc", "account_key=env:KEY", f"endpoint={endpoint}", "allow_http=true", "retry_timeout=1s")
    given = [part for option in options for part in ("--storage-option", option)]
    with running("az://container/leases", *given, environment={"KEY": KEY}) as dashboard, dashboard.news() as news:
        failed = next(each for each in news if each["groups"][0]["problem"])
    assert "az://container/leases could not be read" in failed["groups"][0]["problem"]
    assert KEY[:20] not in str(failed)


def test_wrong_arguments_are_one_line(ehbalance: Command, tmp_path: Path) -> None:
    assert "--port 70000: allowed are 0 to 65535" in ehbalance.fails(2, "dashboard", tmp_path / "x", "--port", 70000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = ehbalance.fails(1, "dashboard", tmp_path / "x", "--port", port)
    assert f"--port {port} cannot be used: Address already in use; --port 0 takes a free one" in message
    assert "leaseTable" in ehbalance.fails(2, "dashboard", "hdfs://x/y")


class Counted(DeltaStore):
    """Notes when it is looked at."""

    def __init__(self, table: Path) -> None:
        super().__init__(str(table))
        self.looks = list[float]()

    def read(self) -> Snapshot:
        self.looks.append(time.monotonic())
        return super().read()


@contextlib.contextmanager
def watched(store: DeltaStore) -> Iterator[Board]:
    board = Board(["leases"])
    thread = Watcher(0, store, board)
    thread.start()
    yield board
    board.close()
    thread.join(60)
    assert not thread.is_alive()


def test_all_viewers_together_cost_one_look_a_second(tmp_path: Path) -> None:
    make(tmp_path / "leases", "ann")
    store, seen = Counted(tmp_path / "leases"), threading.Event()
    with watched(store) as board, board.viewer(seen.set), board.viewer(seen.set), board.viewer(seen.set):
        wait_until(lambda: len(store.looks) >= 3 and seen.is_set(), "it looks while somebody is there")
    apart = [later - earlier for earlier, later in zip(store.looks, store.looks[1:], strict=False)]
    assert min(apart) >= watcher.WATCHED


def test_a_store_that_was_away_is_shown_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "UNWATCHED", 0.05)
    table, away = tmp_path / "leases", tmp_path / "away"
    make(table, "ann", "bob")
    with watched(DeltaStore(str(table))) as board:

        def shown() -> Any:
            return json.loads(board.news(None)[1])["groups"][0]

        looked = wait_until(lambda: shown()["looked"], "it is shown")
        table.rename(away)
        gone = wait_until(lambda: (found := shown())["problem"] and found, "it says that the table is away")
        assert gone["looked"] >= looked
        assert owners(gone) == dict.fromkeys("0123", "ann"), "what was shown stays"
        away.rename(table)
        move(table, "0", "bob")
        wait_until(lambda: owners(shown())["0"] == "bob", "it is shown again")
        assert shown()["problem"] is None
