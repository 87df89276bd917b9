"""Claims-based security: tokens that peers put on `$cbs`, and what they allow."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_plus

from .addresses import entity_path
from .message import Sections
from .request_response import Response

_SCHEME = "SharedAccessSignature "


class TokenRefusedError(Exception):
    """A token that is not valid; the text says why and contains nothing of the token."""


class Grant(NamedTuple):
    """What a token allows: the entity at `path` and all below it, until `expires_at` (seconds since 1970)."""

    path: str
    expires_at: float


def put_token(request: Sections, keys: Mapping[str, str] | None) -> tuple[Response, Grant | None]:
    """Check the token of a put-token request; without `keys` every token is taken, for ever."""
    if request.application.get("operation") != "put-token":
        return Response(400, "The operation must be put-token."), None
    audience = request.application.get("name")
    if not isinstance(audience, str):
        return Response(400, "The name of a put-token request must be an audience."), None
    path = entity_path(audience).lower()
    if keys is None:
        return Response(202, "Accepted"), Grant(path, math.inf)
    try:
        grant = check_sas(request.value, keys)
    except TokenRefusedError as error:
        return Response(401, str(error)), None
    if not covers(grant.path, path):
        return Response(401, "The token is for another entity."), None
    return Response(202, "Accepted"), Grant(path, grant.expires_at)


def check_sas(token: object, keys: Mapping[str, str]) -> Grant:
    """What a shared access signature allows. Raises TokenRefusedError."""
    if not isinstance(token, str) or not token.startswith(_SCHEME):
        raise TokenRefusedError("The token is not a shared access signature.")
    fields = dict(field.split("=", 1) for field in token[len(_SCHEME) :].split("&") if "=" in field)
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
    if not fields["se"].isdecimal() or int(fields["se"]) <= time.time():
        raise TokenRefusedError("The shared access signature has expired.")
    return Grant(entity_path(unquote_plus(fields["sr"])).lower(), float(fields["se"]))


def allows(token: object, keys: Mapping[str, str], path: str) -> bool:
    """Whether `token` is a valid shared access signature for the entity at `path`, in lower case."""
    try:
        return covers(check_sas(token, keys).path, path)
    except TokenRefusedError:
        return False


def covers(granted: str, wanted: str) -> bool:
    """Whether a grant for one entity path holds for another; both in lower case."""
    return granted == "" or wanted == granted or wanted.startswith(granted + "/")


def check_plain(response: bytes, keys: Mapping[str, str] | None) -> bool:
    """Whether a SASL PLAIN response (authorisation, name, key) is right."""
    parts = response.split(b"\0")
    if keys is None:
        return True
    if len(parts) != 3:
        return False
    key = keys.get(parts[1].decode("utf-8", "replace"))
    return key is not None and hmac.compare_digest(key.encode(), parts[2])
