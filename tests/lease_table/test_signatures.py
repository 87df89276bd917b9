"""The signature in a storage's SAS token appears in no error, even if the storage repeats the request."""

from __future__ import annotations

import http.server
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from html import escape
from urllib.parse import quote, unquote

import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.query.spark_checkpoint import opened
from spark_ehbalance.settings.secrets import hide
from tests.lease_table.store_conformance import GROUP

SIGNATURE = "QmFzZTY0/U2lnbmF0+dXJlVmFsdWU1Njc4OTAxMjM0NTY="
PLAIN_PART = "U2lnbmF0"

#: Error pages, by the path and query of the request.
PAGES: list[Callable[[str], str]] = [
    lambda request: request,
    lambda request: request.partition("?")[2],
    lambda request: f"<a href='{escape(request)}'>",
    lambda request: f"<sig>{_signature(request)}</sig>",
    lambda request: f"<sig>{escape(unquote(_signature(request))).replace('+', '&#43;')}</sig>",
    lambda request: json.dumps(unquote(_signature(request))).replace("/", "\\/").replace("+", "\\u002B"),
    quote,
]


def _signature(request: str) -> str:
    return request.partition("sig=")[2].partition("&")[0]


class Gateway(http.server.BaseHTTPRequestHandler):
    status = 403
    page = staticmethod(PAGES[0])

    def do_GET(self) -> None:
        body = self.page(self.path).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("sas", [f"sv=2022-11-02&sig={quote(SIGNATURE, safe='')}&se=2030", f"?sig={SIGNATURE}"])
@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("page", PAGES)
def test_signature_in_an_error_page_is_hidden(
    port: int, page: Callable[[str], str], status: int, sas: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gateway, "page", staticmethod(page))
    monkeypatch.setattr(Gateway, "status", status)
    endpoint = {"endpoint": f"http://127.0.0.1:{port}", "account_name": "account", "allow_http": "true"}
    limits = {"max_retries": "0", "retry_timeout": "1s"}
    delta = open_store("az://container/leases", endpoint | limits | {"sas_token": sas})
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    by_variable = open_store("az://container/leases", endpoint | limits)
    blobs = open_store(f"http://127.0.0.1:{port}/account/container", {"sas_token": sas}, group=GROUP)
    for store in (delta, by_variable, blobs):
        for request in (store.read, lambda store=store: store.create(GROUP), store.history):
            assert PLAIN_PART not in shown(request)


@pytest.mark.parametrize("page", PAGES)
def test_signature_is_hidden_in_errors_of_checkpoints(page: Callable[[str], str]) -> None:
    def read() -> None:
        with opened("/", {"sas_token": f"sig={SIGNATURE}"}):
            raise OSError(page(f"/c?sig={quote(SIGNATURE, safe='')}"))

    assert PLAIN_PART not in shown(read)


def shown(request: Callable[[], object]) -> str:
    """The error of `request` with its traceback, if it fails."""
    try:
        request()
    except EhBalanceError as error:
        return "".join(traceback.format_exception(error)) + repr(error)
    return ""


def test_hide_keeps_other_text() -> None:
    assert hide("403 for key=a%2Bb, sig=a%2525%32b", ["a+b"]) == "403 for key=a%2Bb, sig=a%2525%32b"
    assert "403 at" in hide(f"403 at {quote(SIGNATURE)}", [f"sig={quote(SIGNATURE)}"])
