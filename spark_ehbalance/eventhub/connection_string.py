"""Parses connection strings as users paste them. Pure. Errors never contain a value, because it may be a secret."""

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
    """The parts of a connection string by name, with the host as `Endpoint`. `join` is the inverse.

    Ignores surrounding quotes, blanks around parts and names, and the case of names. Raises `ValueError`, whose message
    states the problem.
    """
    text = text.strip()
    if len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1]
    parts: dict[str, str] = {}
    for number, part in enumerate(text.rstrip("; ").split(";"), 1):
        key, _, value = (text.strip() for text in part.partition("="))
        name = _NAMES.get(key.lower(), key)
        if not name or not value:
            raise ValueError(f"{name} is empty" if name in _NAMES.values() else f"part {number} is not NAME=VALUE")
        if name.lower() in map(str.lower, parts):
            raise ValueError(f"part {number} repeats a name")
        parts[name] = value
    if problem := _problem(parts):
        raise ValueError(problem)
    return parts | {"Endpoint": host_of(parts["Endpoint"])}


def _problem(parts: dict[str, str]) -> str | None:
    if "HostName" in parts:
        return (
            "HostName belongs to an IoT Hub's service connection string; the portal shows the Event Hub-compatible "
            "endpoint, which begins with Endpoint=, under Built-in endpoints"
        )
    if "Endpoint" not in parts:
        return "it has no Endpoint"
    if _KEY in parts and _SIGNATURE in parts:
        return f"it has both {_KEY} and {_SIGNATURE}"
    if _SIGNATURE not in parts and (missing := [name for name in (_KEY_NAME, _KEY) if name not in parts]):
        return f"it has no {missing[0]}"
    return None


def join(parts: dict[str, str]) -> str:
    """The connection string with these `parts`, in the form that the client parses."""
    return ";".join(f"{name}={value}" for name, value in (parts | {"Endpoint": f"sb://{parts['Endpoint']}/"}).items())


def host_of(address: str) -> str:
    """The host of an address with or without a scheme, and its port unless that is HTTPS's default."""
    scheme = _SCHEME.match(address)
    host = address[scheme.end() if scheme else 0 :].removesuffix("/").strip()
    return host.removesuffix(":443") if scheme and scheme[1].lower() == "https" else host
