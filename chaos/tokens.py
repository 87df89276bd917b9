"""Tokens that expire within seconds, for the real clients: shared access signatures, and the tokens that azure-identity
fetches for a managed identity."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from azure.core.credentials import AccessToken
from azure.eventhub import EventHubConsumerClient, parse_connection_string
from azure.eventhub._pyamqp.utils import generate_sas_token

from spark_ehbalance.eventhub.connection import Connection

#: The environment variable with the seconds for which tokens of `short_tokens` are valid.
LIFE = "EHBALANCE_CHAOS_TOKEN_LIFE"


@dataclass(frozen=True)
class ShortLived(Connection):
    """A connection to an emulator without TLS. With a connection string, the client's signatures are valid for `life`
    seconds. With a credential, the credential determines how long its tokens are valid."""

    life: float = 20.0

    def consumer_client(self, consumer_group: str, **settings: Any) -> EventHubConsumerClient:
        if self.connection_string is None:
            return super().consumer_client(consumer_group, use_tls=False, **settings)
        parts = parse_connection_string(self.connection_string)
        credential: Any = Signatures(str(parts.shared_access_key_name), str(parts.shared_access_key), self.life)
        return EventHubConsumerClient(self.namespace, self.hub, consumer_group, credential, use_tls=False, **settings)


class Signatures:
    """A credential for a key. It is like the client's own, but that one's signatures are valid for an hour."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, name: str, key: str, life: float) -> None:
        self._name, self._key, self._life = name, key, life

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        end = int(time.time() + self._life)
        return AccessToken(generate_sas_token(scopes[0], self._name, self._key, end), end)


class IdentityEndpoint:
    """The endpoint from which a managed identity of an App Service gets its tokens. They expire after `life` seconds.

    If `stated` is given, the response states that number of seconds instead. `environment` directs azure-identity to
    this endpoint; `issued` counts the tokens.
    """

    def __init__(self, life: float, stated: float | None = None) -> None:
        self.issued = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.issued += 1
                body = json.dumps(_answer(life, stated or life, endpoint.issued)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        address = f"http://127.0.0.1:{self._server.server_port}/token"
        # a unique header, so that azure-identity does not reuse the tokens of an earlier endpoint on the same port
        self.environment = {"IDENTITY_ENDPOINT": address, "IDENTITY_HEADER": uuid.uuid4().hex}

    def __enter__(self) -> IdentityEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class ShortTokens:
    """A credential whose tokens expire after `life` seconds. It does not cache tokens. The emulator and Azurite accept
    them."""

    def __init__(self, life: float) -> None:
        self.issued, self._life = 0, life

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.issued += 1
        return AccessToken(_token(self._life, self.issued), int(time.time() + self._life))


def short_tokens() -> ShortTokens:
    """The credential `chaos.tokens:short_tokens`, created in each process of a query."""
    return ShortTokens(float(os.environ[LIFE]))


def _answer(life: float, stated: float, serial: int) -> dict[str, str]:
    expires_on = str(int(time.time() + stated))
    return {"access_token": _token(life, serial), "expires_on": expires_on, "resource": "r", "token_type": "Bearer"}


def _token(life: float, serial: int) -> str:
    now = time.time()
    # Azurite checks the issuer, the audience and the times.
    claims = {"iss": "https://sts.windows.net/tenant/", "aud": "https://storage.azure.com", "nbf": int(now)}
    parts = {"alg": "none"}, {**claims, "iat": int(now), "exp": int(now + life), "jti": serial}
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{'.'.join(encoded)}."
