"""Where a lease table may be: what is written is made the one spelling of a path or an address, or is refused with what
to write instead.

What delta-rs does not know it takes for a folder below the working directory, so that two jobs would have a table each
and both read everything.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from spark_ehbalance.errors import OptionError

#: The kinds of address that delta-rs knows and on which a file is created only if it is not there.
_SCHEMES = ("abfs", "abfss", "adl", "az", "azure", "gs", "hdfs", "https", "s3", "s3a")

#: Mounts that Databricks shows storage through; they have neither hard links nor a rename that replaces nothing.
_MOUNTS = ("/dbfs", "/Volumes")

_EXAMPLE = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"


def location(text: str) -> str:
    """The lease table that `text` means: an address, or a path that holds in any working directory.

    Raises `ValueError` with what to write instead.
    """
    # delta-rs has panicked on such paths; a backslash is a slash to some systems and a letter to others.
    if not text or re.search(r"[\"'\[\]{}<>|*?`\\\x00-\x1f\x7f]", text):
        raise ValueError("a path or an address without quotes, brackets, wildcards, backslashes and control characters")
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        return _path(text)
    if scheme.lower() == "file":
        return _path(_unescaped(_whole("file", rest)))
    return _address(scheme.lower(), rest)


def checkpoint_location(text: str) -> str:
    """The folder that `text` means and that is only read, so that any mount will do: an address, or a whole path.

    Raises `ValueError` with what to write instead.
    """
    scheme, colon, rest = text.partition(":")
    if text and (not colon or "/" in scheme):
        return os.path.abspath(text)
    mounts = {"file": "", "dbfs": "/dbfs"}
    if (local := scheme.lower()) in mounts:
        return os.path.normpath(mounts[local] + unquote(_whole(local, rest)))
    return location(text)


def is_relative(text: str) -> bool:
    """Whether what `text` means depends on the working directory."""
    return not text.startswith("/") and ":" not in text.partition("/")[0]


def check_storage(lease_table: str, storage_options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raises `OptionError` where delta-rs is told, in any of its spellings, to commit to the lease table in a way that
    replaces what somebody else has committed. The environment holds where no option of the same name says otherwise."""
    given = {f"storageOptions.{name}": (name, value) for name, value in storage_options.items()}
    options = {name.lower() for name in storage_options}
    for name, value in environment.items():
        if name.lower() not in options and _concerns(name.lower(), lease_table):
            given[f"the environment variable {name}"] = (name, value)
    for shown, (name, value) in given.items():
        unsafe = name.lower().endswith("allow_unsafe_rename") and value.strip().lower() not in _FALSE
        if unsafe or (name.lower().endswith("conditional_put") and value.strip().lower() == "disabled"):
            raise OptionError(
                f"{shown} is set: with it two queries could take the same partition, as the lease table needs a "
                "storage that creates a file only if it is not there. Leave it out"
            )


def _concerns(variable: str, lease_table: str) -> bool:
    """Whether delta-rs heeds this variable of the environment for the table: those of S3, and those of mounts."""
    if variable.startswith("aws_") or variable.endswith("conditional_put"):
        return lease_table.startswith(("s3://", "s3a://"))
    return "://" not in lease_table


_FALSE = ("", "0", "false", "no", "off", "n", "f")


def _path(text: str) -> str:
    if text.startswith("~"):
        raise ValueError("a path without ~, which only a shell knows: write the whole path")
    if re.fullmatch(r"\w+(\.\w+){1,2}", text):
        raise ValueError(
            f"no name of a catalog: write where its table is stored, such as {_EXAMPLE}, or ./{text} for a folder"
        )
    path = "/" + os.path.abspath(text).lstrip("/")
    if any(path == mount or path.startswith(mount + "/") for mount in _MOUNTS):
        raise ValueError(
            f"no path below {' or '.join(_MOUNTS)}, where two queries could take the same partition: no rename there "
            f"replaces nothing: write the address of the storage, such as {_EXAMPLE}"
        )
    if path == "/":
        raise ValueError("a folder: write one below /")
    if re.search(r"%[0-9A-Fa-f]{2}", path):
        raise ValueError("a path without % before two hexadecimal digits, which delta-rs takes for an escape")
    return path


def _whole(scheme: str, rest: str) -> str:
    match = re.fullmatch(r"(?://(?:localhost)?)?(/[^/].*)", rest, re.DOTALL)
    if match is None:
        raise ValueError(f"{scheme}:///PATH with a whole path")
    return match[1]


def _address(scheme: str, rest: str) -> str:
    if scheme == "dbfs":
        raise ValueError(
            "no dbfs: address, as DBFS has no way to create a file only if it is not there: write the address of a "
            f"storage, such as {_EXAMPLE}"
        )
    if scheme not in _SCHEMES:
        raise ValueError(f"a path, or an address that begins with {', '.join(each + '://' for each in _SCHEMES)}")
    host, _, path = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not host:
        raise ValueError(f"an address with two slashes, such as {_EXAMPLE if scheme == 'abfss' else scheme + '://...'}")
    if "#" in rest or re.search(r"%25[0-9A-Fa-f]{2}", rest):
        raise ValueError("an address without # and without an escaped %")
    if "@" in host and (scheme not in ("abfs", "abfss") or ":" in host.partition("@")[0]):
        raise ValueError("an address without a user and a password")
    folder = posixpath.normpath("/" + _unescaped(path)).lstrip("/")
    if not folder:
        raise ValueError(f"a folder: write one below {scheme}://{host}/")
    host = host if scheme == "hdfs" else host.lower()  # names of HDFS name services are told apart by case
    return f"{scheme}://{host}/{quote(folder)}"


def _unescaped(path: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", path):
        raise ValueError("an address in which % is written as an escape, such as %20 for a space")
    plain = unquote(path, errors="strict")  # UnicodeDecodeError is a ValueError
    if re.search(r"[\"'\[\]{}<>|*?`\\\x00-\x1f\x7f]", plain):
        raise ValueError("an address without escaped quotes, brackets, wildcards, backslashes and control characters")
    return plain
