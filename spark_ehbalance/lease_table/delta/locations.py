"""Locations of Delta lease tables, and checks for storage options that are not allowed.

Each location has one canonical form. Addresses with an unknown scheme are rejected: delta-rs would treat them as
folders below the working directory, so two jobs would each have their own table and read everything.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from spark_ehbalance.errors import OptionError
from spark_ehbalance.lease_table.identity import check_identity, plain_name
from spark_ehbalance.settings.locations import EXAMPLE_ADDRESS, has_unsafe_characters, path_in_url, scheme

#: Schemes of the storage services that delta-rs and obstore support and that have conditional writes. None means a
#: path.
SCHEMES = (None, "file", "abfs", "abfss", "adl", "az", "azure", "gs", "https", "s3", "s3a")

#: The host of a storage account, possibly in a DNS zone (`z12`), and the clouds that delta-rs and obstore support.
_ACCOUNT = re.compile(r"(?P<account>[a-z0-9-]+)(?P<zone>(\.z[0-9]{1,2})?)\.(dfs|blob)\.(?P<cloud>[a-z0-9.-]+)")
_KNOWN_CLOUDS = ("core.windows.net", "fabric.microsoft.com")

#: Storage mounts on Databricks. They support neither hard links nor a rename that fails if the target exists.
_MOUNTS = ("/dbfs", "/Volumes")

#: Values that turn delta-rs's flags off.
_FALSE = ("", "0", "false", "no", "off", "n", "f")


def has_known_scheme(location: str) -> bool:
    """Whether the scheme of `location` is one of `SCHEMES`."""
    return scheme(location) in SCHEMES


def parse_location(text: str) -> str:
    """The canonical form of a location with one of `SCHEMES`: an address or an absolute path.

    Raises `ValueError`, whose message states the allowed forms.
    """
    kind, rest = scheme(text), text.partition(":")[2]
    if kind is None:
        return _path(text)
    return _path(_unescaped(path_in_url("file", rest))) if kind == "file" else _address(kind, rest)


def library_arguments(location: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The address and the options with which delta-rs and obstore open `location`.

    These libraries support only one cloud, and treat an HTTPS address as that of an ordinary web server. So an
    account in another cloud or in a DNS zone is passed as an option, with its endpoint unless the options contain one.
    """
    kind, (server, _, path) = scheme(location), location.partition("://")[2].partition("/")
    container, at, host = server.rpartition("@")
    account = _ACCOUNT.fullmatch(host)
    if account is None or (kind != "https" and not at):
        return location, dict(options)
    if kind == "https":
        container, _, path = path.partition("/")
    if account["cloud"] in _KNOWN_CLOUDS:
        return f"abfss://{container}@{host}/{path}", dict(options)
    own = {name: value for name, value in options.items() if plain_name(name) != "account_name"}
    if not any(plain_name(name) == "endpoint" for name in own):
        own["endpoint"] = f"https://{account['account']}{account['zone']}.blob.{account['cloud']}"
    return f"az://{container}/{path}", own | {"account_name": account["account"]}


def check_storage(location: str, options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise `OptionError` for an invalid credential, and for an option that lets delta-rs overwrite another writer's
    commit or rely on locks. The same applies to environment variables that no option overrides."""
    check_identity(location, options)
    settings = {f"storageOptions.{name}": (name, value) for name, value in options.items()}
    overridden = {name.lower() for name in options}
    for name, value in environment.items():
        if name.lower() not in overridden and _concerns(name.lower(), location):
            settings[f"Environment variable {name}"] = (name, value)
    for source, (name, value) in settings.items():
        unsafe = name.lower().endswith("allow_unsafe_rename") and value.strip().lower() not in _FALSE
        if unsafe or (name.lower().endswith("conditional_put") and value.strip().lower() == "disabled"):
            reason = "otherwise, existing files could be overwritten, and two queries could own the same partition"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=source, reason=reason)
        if name.lower().endswith("s3_locking_provider"):
            reason = "the lease table commits with S3 conditional writes, so no writer may rely on locks"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=source, reason=reason)


def _concerns(variable: str, location: str) -> bool:
    """Whether delta-rs reads this environment variable for a table at `location`: only for S3 and local paths."""
    if variable.startswith("aws_") or variable.endswith("conditional_put"):
        return location.startswith(("s3://", "s3a://"))
    return "://" not in location


def _path(text: str) -> str:
    if text.startswith("~"):
        raise ValueError("an absolute path without ~, which only a shell expands")
    if re.fullmatch(r"\w+(\.\w+){1,2}", text):
        raise ValueError(
            f"an address or a path, such as {EXAMPLE_ADDRESS}, not the name of a table in a catalog; or ./{text} for a "
            "folder of this name"
        )
    path = "/" + os.path.abspath(text).lstrip("/")
    if any(path == mount or path.startswith(mount + "/") for mount in _MOUNTS):
        raise ValueError(
            f"a path that is not below {' or '.join(_MOUNTS)}, where a rename replaces an existing file and two "
            f"queries could own the same partition; or a storage address, such as {EXAMPLE_ADDRESS}"
        )
    if path == "/":
        raise ValueError("a folder below /")
    if "\\" in path:
        raise ValueError("a path without backslashes, which delta-rs treats as slashes")
    if re.search(r"%[0-9A-Fa-f]{2}", path):
        raise ValueError("a path without % before two hexadecimal digits, which delta-rs treats as an escape")
    return path


def _address(kind: str, rest: str) -> str:
    host, _, path = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not host:
        raise ValueError(
            f"an address with two slashes, such as {EXAMPLE_ADDRESS if kind == 'abfss' else kind + '://...'}"
        )
    if "#" in rest or re.search(r"%25[0-9A-Fa-f]{2}", rest):
        raise ValueError("an address without # and without an escaped %")
    if "@" in host and (kind not in ("abfs", "abfss") or ":" in host.partition("@")[0]):
        raise ValueError("an address without a user name or password")
    if kind == "https" and not _ACCOUNT.fullmatch(host.lower()):
        raise ValueError(
            "an https address of a storage account, such as https://ACCOUNT.blob.core.windows.net/CONTAINER/FOLDER"
        )
    folder = posixpath.normpath("/" + _unescaped(path)).lstrip("/")
    if not folder:
        raise ValueError(f"a folder below {kind}://{host}/")
    return f"{kind}://{host.lower()}/{quote(folder)}"


def _unescaped(path: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", path):
        raise ValueError("an address with % only in escapes, such as %20 for a space")
    try:
        plain = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("an address whose escapes are UTF-8, such as %C3%A4 for ä") from None
    if has_unsafe_characters(plain):
        raise ValueError(
            "an address without escaped quotes, brackets, wildcards, carets, backslashes or control characters"
        )
    return plain
