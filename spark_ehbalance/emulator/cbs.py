"""Claims-based security: the tokens that clients send to `$cbs`, and the paths to which the tokens grant access."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from urllib.parse import unquote_plus

from spark_ehbalance.emulator.addresses import entity_path
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.message import Response, Sections
from spark_ehbalance.emulator.service_errors import AUTH_FAILED

_SCHEME = "SharedAccessSignature "
_SECONDS = r"[0-9]{1,11}(\.[0-9]*)?"  # since 1970, within the range of a datetime


class TokenRefusedError(Exception):
    """A token is invalid. The text is the reason, and contains no part of the token."""


class Tokens:
    """The tokens sent on one connection. Each token grants access to the entity at a path (in lower case), and to the
    entities below it."""

    def __init__(self, keys: Mapping[str, str] | None) -> None:
        """`keys` maps names to the keys that verify tokens. With None, every token is accepted until it expires."""
        self._keys = keys
        self._expiries: dict[str, float] = {}  # by path, in seconds since 1970

    def put(self, request: Sections, max_seconds: float, check_hub: Callable[[str], object]) -> Response:
        """Respond to a put-token request. The token is valid for at most `max_seconds`.

        `check_hub` must raise AmqpError if there is no hub at a path.
        """
        audience = request.application.get("name")
        if request.application.get("operation") != "put-token" or not isinstance(audience, str):
            return Response(400, "The operation must be put-token, and the name must be an audience.")
        path = entity_path(audience).lower()
        try:
            check_hub(path)
        except AmqpError as error:
            return Response(404, error.description, condition=error.condition)
        try:
            granted, end = (
                (path, _expiry(request.value)) if self._keys is None else verify_sas(request.value, self._keys)
            )
            _check_unexpired(end)
        except TokenRefusedError as error:
            return _rejection(str(error))
        if not covers(granted, path):
            return _rejection("The token is for another entity.")
        self._expiries[path] = min(end, time.time() + max_seconds)
        return Response(202, "Accepted")

    def allow(self, path: str) -> bool:
        """Whether the connection has a valid token for `path`. Without keys, no token is required until the client
        sends one."""
        ends = [end for granted, end in self._expiries.items() if covers(granted, path)]
        return max(ends) > time.time() if ends else self._keys is None

    def check(self, token: object, path: str) -> bool:
        """Whether `token`, sent with a request, is a valid shared access signature for `path`."""
        try:
            granted, end = verify_sas(token, self._keys or {})
            _check_unexpired(end)
        except TokenRefusedError:
            return False
        return covers(granted, path)


def _rejection(reason: str) -> Response:
    return Response(401, reason, condition=AUTH_FAILED)


def verify_sas(token: object, keys: Mapping[str, str]) -> tuple[str, float]:
    """The path to which a shared access signature grants access, and the signature's expiry. Raises TokenRefusedError
    if the signature is not valid."""
    if not isinstance(token, str) or not token.startswith(_SCHEME):
        raise TokenRefusedError("The token is not a shared access signature.")
    fields = _fields(token)
    if not {"sr", "sig", "se", "skn"} <= fields.keys():
        raise TokenRefusedError("The shared access signature lacks sr, sig, se or skn.")
    # the Azure Python client quotes the key's name twice
    name = unquote_plus(unquote_plus(fields["skn"]))
    if name not in keys:
        raise TokenRefusedError("The shared access signature names an unknown key.")
    signed = f"{fields['sr']}\n{fields['se']}".encode()
    expected = base64.b64encode(hmac.new(keys[name].encode(), signed, hashlib.sha256).digest())
    if not hmac.compare_digest(expected, unquote_plus(fields["sig"]).encode()):
        raise TokenRefusedError("The shared access signature is wrong.")
    if not re.fullmatch(_SECONDS, fields["se"]):
        raise TokenRefusedError("The shared access signature has no valid expiry.")
    return entity_path(unquote_plus(fields["sr"])).lower(), float(fields["se"])


def _fields(signature: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in signature[len(_SCHEME) :].split("&") if "=" in field)


def _check_unexpired(end: float) -> None:
    """Raise TokenRefusedError, with Azure's text, if `end` has passed."""
    if end <= time.time():
        expiry = datetime.fromtimestamp(end, timezone.utc)
        raise TokenRefusedError(f"ExpiredToken: The token is expired. Expiration time: '{expiry:%m/%d/%Y %H:%M:%S}'.")


def _expiry(token: object) -> float:
    """The expiry in a shared access signature or a JSON web token; infinity if the token contains no expiry."""
    if not isinstance(token, str):
        return math.inf
    if token.startswith(_SCHEME):
        expiry = _fields(token).get("se", "")
    else:
        claims = token.partition(".")[2].partition(".")[0]
        try:
            expiry = str(json.loads(base64.urlsafe_b64decode(claims + "==="))["exp"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return math.inf
    return float(expiry) if re.fullmatch(_SECONDS, expiry) else math.inf


def covers(granted: str, path: str) -> bool:
    """Whether a token that grants access to the path `granted` is valid for `path`. Both are in lower case."""
    return path == granted or path.startswith(granted + "/")
