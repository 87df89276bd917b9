"""Opens storage with obstore, but with delta-rs's options. obstore and delta-rs both use the Rust library object_store,
so the options and the credentials are the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import LocalStore, ObjectStore, from_url

from spark_ehbalance.lease_table.identity import StorageTokens
from spark_ehbalance.settings.parsing import parse_duration

#: Options of the HTTP client. delta-rs also accepts them with the prefix of a storage service.
_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)

_FLAGS = ("allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "randomize_addresses")

#: The values of flags that delta-rs accepts.
_ON, _OFF = ("1", "true", "on", "yes", "y"), ("0", "false", "off", "no", "n")

#: Options that only the location sets.
_PLACES = frozenset({"bucket", "bucket_name", "container_name"})

#: The beginning of a location's scheme → the prefix of the environment variables that set its options.
_VARIABLES = {"s3": "aws_", "gs": "google_", "a": "azure_", "https": "azure_"}


def open_storage(uri: str, options: Mapping[str, str], tokens: StorageTokens | None = None) -> ObjectStore:
    """Open the storage at `uri`, which is an address or an absolute path; file names are relative to it. `tokens`
    provide the credentials.

    Raises `FileNotFoundError` if `uri` is a path without a folder, and `ValueError` for an invalid option. obstore's
    `BaseError` is passed through.
    """
    if "://" not in uri:
        if not os.path.isdir(uri):
            raise FileNotFoundError(f"there is no folder {uri}")
        return LocalStore(uri)
    lower = _client_variables(uri) | {name.lower(): value for name, value in options.items()}
    lower = {name: value for name, value in lower.items() if _plain(name) not in _PLACES}
    client = {_plain(name): value for name, value in lower.items() if _plain(name) in _CLIENT}
    if uri.startswith("gs:"):  # delta-rs does the same, for http: endpoints
        client = {"allow_http": "true"} | client
    retry = {name: value for name, value in lower.items() if name in ("max_retries", "retry_timeout")}
    rest = {n: value for n, value in lower.items() if _plain(n) not in _CLIENT and n not in retry and "." not in n}
    given: dict[str, Any] = {
        "config": _known(uri, rest),
        "client_options": {name: _client_value(name, value) for name, value in client.items()},
        "retry_config": _retry(retry),
    }
    if tokens is not None:
        given["credential_provider"] = tokens
    return from_url(uri, **given)


def _client_variables(uri: str) -> dict[str, str]:
    """The HTTP client's options in the environment. obstore itself reads all other options."""
    prefix = next((prefix for scheme, prefix in _VARIABLES.items() if uri.startswith(scheme)), "")
    variables = {name.lower(): value for name, value in os.environ.items()}
    return {n: v for n, v in variables.items() if prefix and n.startswith(prefix) and _plain(n) in _CLIENT}


def _plain(name: str) -> str:
    return re.sub(r"^(azure|aws|google)_", "", name)


def _client_value(name: str, value: str) -> Any:
    if name not in _FLAGS:
        return value
    if value.lower() not in (*_ON, *_OFF):
        raise ValueError(f"{name} is neither true nor false")
    return value.lower() in _ON


def _known(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """The `options` that the storage supports. The others are dropped, because delta-rs ignores them too."""
    known = {}
    for name, value in options.items():
        try:
            alone: Any = {name: value}
            from_url(uri, config=alone)
        except UnknownConfigurationKeyError:
            continue
        except BaseError:  # an invalid value or a missing option, which the final call reports
            pass
        known[name] = value
    return known


def _retry(options: Mapping[str, str]) -> Any:
    retry: dict[str, Any] = {}
    if "max_retries" in options:
        retry["max_retries"] = int(options["max_retries"])
    if "retry_timeout" in options:
        retry["retry_timeout"] = timedelta(seconds=parse_duration(options["retry_timeout"]))
    return retry
