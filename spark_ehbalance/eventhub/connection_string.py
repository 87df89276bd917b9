"""Connection strings as people paste them. Pure. No message repeats a value, which may be a secret."""

from __future__ import annotations

import re

_KEY_NAME, _KEY, _SIGNATURE = "SharedAccessKeyName", "SharedAccessKey", "SharedAccessSignature"

_NAMES = {
    name.lower(): name
    for name in ("Endpoint", _KEY_NAME, _KEY, _SIGNATURE, "EntityPath", "UseDevelopmentEmulator", "HostName")
}

_SCHEME = re.compile(r"(?i)(sb|amqps|https)://")

_QUOTES = ('""', "''", "“”")


def parse(text: str) -> dict[str, str]:
    """The parts of a connection string by name, with the host as `Endpoint`; `joined` makes it one again.

    Quotes around it, blanks around its parts and names, and a name's case do not count. Raises `ValueError`, which says
    what is wrong.
    """
    text = text.strip()
    if len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1]
    parts: dict[str, str] = {}
    for number, part in enumerate(text.rstrip("; ").split(";"), 1):
        given, _, value = (each.strip() for each in part.partition("="))
        name = _NAMES.get(given.lower(), given)
        if not name or not value:
            raise ValueError(f"{name} is empty" if name in _NAMES.values() else f"its part {number} is not NAME=VALUE")
        if name.lower() in map(str.lower, parts):
            raise ValueError(f"its part {number} has a name that is there twice")
        parts[name] = value
    if problem := _problem(parts):
        raise ValueError(problem)
    return parts | {"Endpoint": host_of(parts["Endpoint"])}


def _problem(parts: dict[str, str]) -> str | None:
    if "HostName" in parts:
        return (
            "HostName is of an IoT Hub's service string: the portal shows the hub's own one, which begins with "
            "Endpoint=, under Built-in endpoints as Event Hub-compatible endpoint"
        )
    if "Endpoint" not in parts:
        return "it has no Endpoint"
    if _KEY in parts and _SIGNATURE in parts:
        return f"it has both {_KEY} and {_SIGNATURE}"
    if _SIGNATURE not in parts and (missing := [name for name in (_KEY_NAME, _KEY) if name not in parts]):
        return f"it has no {missing[0]}"
    return None


def joined(parts: dict[str, str]) -> str:
    """The connection string of these `parts`, as the client reads it."""
    return ";".join(f"{name}={value}" for name, value in (parts | {"Endpoint": f"sb://{parts['Endpoint']}/"}).items())


def host_of(address: str) -> str:
    """The host, and port if there is one, of an address with or without scheme; that of HTTPS does not count."""
    scheme = _SCHEME.match(address)
    host = address[scheme.end() if scheme else 0 :].removesuffix("/").strip()
    return host.removesuffix(":443") if scheme and scheme[1].lower() == "https" else host
