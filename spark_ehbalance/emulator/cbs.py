"""Claims-based security: the tokens that clients put on `$cbs`, and what they grant."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import unquote_plus

from .addresses import entity_path
from .message import Response, Sections

_SCHEME = "SharedAccessSignature "
_SECONDS = r"[0-9]{1,11}(\.[0-9]*)?"  # since 1970, within the range of a datetime


class TokenRefusedError(Exception):
    """A token is invalid; the text gives the reason and contains nothing of the token."""


class Grant(NamedTuple):
    """What a token grants: the entity at `path` and all below it, until `expires_at` (seconds since 1970)."""

    path: str
    expires_at: float


def put_token(request: Sections, keys: Mapping[str, str] | None) -> tuple[Response, Grant | None]:
    """Check the token of a put-token request; without `keys` every token is accepted until it expires."""
    if request.application.get("operation") != "put-token":
        return Response(400, "The operation must be put-token."), None
    audience = request.application.get("name")
    if not isinstance(audience, str):
        return Response(400, "The name of a put-token request must be an audience."), None
    path = entity_path(audience).lower()
    try:
        grant = Grant(path, _unexpired(_expiry(request.value))) if keys is None else check_sas(request.value, keys)
    except TokenRefusedError as error:
        return Response(401, str(error)), None
    if not covers(grant.path, path):
        return Response(401, "The token is for another entity."), None
    return Response(202, "Accepted"), Grant(path, grant.expires_at)


def check_sas(token: object, keys: Mapping[str, str]) -> Grant:
    """The grant of a shared access signature. Raises TokenRefusedError."""
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
        raise TokenRefusedError("The shared access signature does not say when it ends.")
    return Grant(entity_path(unquote_plus(fields["sr"])).lower(), _unexpired(float(fields["se"])))


def _fields(signature: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in signature[len(_SCHEME) :].split("&") if "=" in field)


def _unexpired(expires_at: float) -> float:
    """`expires_at`. Raises TokenRefusedError, in Azure's words, if it has passed."""
    if expires_at <= time.time():
        expiry = datetime.fromtimestamp(expires_at, timezone.utc)
        raise TokenRefusedError(f"ExpiredToken: The token is expired. Expiration time: '{expiry:%m/%d/%Y %H:%M:%S}'.")
    return expires_at


def _expiry(token: object) -> float:
    """The expiry that a shared access signature or JSON web token contains; infinity if it contains none."""
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


def allows(token: object, keys: Mapping[str, str], path: str) -> bool:
    """Whether `token` is a valid shared access signature for the entity at `path` (in lower case)."""
    try:
        return covers(check_sas(token, keys).path, path)
    except TokenRefusedError:
        return False


def covers(granted: str, wanted: str) -> bool:
    """Whether a grant for the path `granted` includes `wanted`; both in lower case."""
    return granted == "" or wanted == granted or wanted.startswith(granted + "/")


def check_plain(response: bytes, keys: Mapping[str, str] | None) -> bool:
    """Whether a SASL PLAIN response (authorization, name, key) is valid; without `keys` every one is."""
    parts = response.split(b"\0")
    if keys is None:
        return True
    if len(parts) != 3:
        return False
    key = keys.get(parts[1].decode("utf-8", "replace"))
    return key is not None and hmac.compare_digest(key.encode(), parts[2])
