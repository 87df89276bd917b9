"""Detection, redaction and references of secrets.

Spark shows options in plans, errors, event logs and its UI, and operating systems show command lines. So a secret must
be passed by reference, or as an option whose name or value makes Spark hide it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from spark_ehbalance.errors import OptionError

#: The forms of a reference to a secret. Only the driver resolves it.
REFERENCES = "env:NAME (a variable of the driver's environment) or file:PATH (a file on its machine)"

#: Spark's default of `spark.redaction.regex`: Spark hides options whose name or value matches it.
_HIDDEN_BY_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")

#: Maximum size of a file that contains a secret, in bytes. A Google service account, the longest kind, has 3 KB.
_LARGEST = 65536

#: Matches text that can only be a secret.
_SECRET = re.compile(
    # `SharedAccessKey=…`, `sig=…` and similar
    r"(?i:sharedaccess(key|signature)\s*=(?!env:|file:))"
    r"|(?i:(account_?key|access_?key|signature|\bsig|secret|password|token)\"?\s*[=:]\s*(?!env:|file:)[^\s;&]{8})"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a password in an address
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY|private_key\\*\"\s*:"
    r"|[\w.~%-]{3}\d[Qq](?:~|%7[Ee])[\w.~%-]{31}"  # a client secret of Entra ID
    r"|\beyJ[\w-]{8,1000}\.[\w-]{8}"  # a token of Entra ID or Google, whose first part is short
    # a key of Event Hubs or of a storage account, a signature
    r"|(?<![A-Za-z0-9+/_%-])([A-Za-z0-9+/_-]|%2[BbFf]){16,}(=|%3[Dd]){1,2}(?!\w)"
)

#: A certificate is public, though its last line may look like a key.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

#: Matches text that may be a secret: a value whose name suggests a key, a long run of letters and digits (with slashes,
#: if it is not a path), or a password before a host. No part backtracks over the whole text, which would take minutes.
_RUN = re.compile(
    r"(?i:key|sig|signature|secret|password|token)\s*="
    r"|(?<![A-Za-z0-9+=%])(?=[A-Za-z+=%]*\d)(?=[\d+=%]*[A-Za-z])[A-Za-z0-9+=%]{20,}"
    r"|^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+=%][A-Za-z0-9+=%/]{31,}$"
    r"|[^/\s@]:[^/@:]+@"
)

#: Matches the names and aliases of secret options in delta-rs and object_store. Other option names with these words
#: stand for addresses, paths, switches and ids.
_SECRET_NAME = re.compile(r"(?i)((?<!kms_)key(_id|_base64)?|secret|token|password|sas)(_dynamodb)?$")

#: Maximum number of characters of a value that an error contains, which is the length of a long address.
_MAX_SHOWN = 500

#: In place of a value that could be a secret.
HIDDEN = "(not shown, as it could be a secret)"


def looks_secret(text: str) -> bool:
    """Whether `text` can only be a key, a signed address or a connection string."""
    return _SECRET.search(_CERTIFICATE.sub("", text)) is not None


def is_secret_name(storage_option: str) -> bool:
    """Whether delta-rs's option of this name is a secret."""
    return _SECRET_NAME.search(storage_option) is not None


def is_hidden_by_spark(value: str) -> bool:
    """Whether Spark hides an option with this value, whatever its name."""
    return _HIDDEN_BY_SPARK.search(value) is not None


def may_be_secret(text: str) -> bool:
    """Whether `text` may be a secret, which no message may contain."""
    return looks_secret(text) or _RUN.search(text) is not None


def redacted(value: str) -> str:
    """`value` for an error message: hidden if it may be a secret in the wrong option, and cut if it is long."""
    if may_be_secret(value):
        return HIDDEN
    return repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")


def is_reference(value: str) -> bool:
    """Whether `value` refers to a secret: `env:NAME` or `file:PATH`."""
    return value.lower().startswith(("env:", "file:"))


def resolve_secret(option: str, value: str) -> str:
    """The secret that `value` refers to, or `value` itself if it is not a reference.

    Raises `OptionError`, which names `option`, if the variable or the file is missing or unusable.
    """
    if not is_reference(value):
        return value
    kind, _, name = value.partition(":")
    secret, problem = _variable(name) if kind.lower() == "env" else _file(name)
    if problem:
        raise OptionError("EHB_SECRET_UNAVAILABLE", option=option, value=redacted(value), reason=problem)
    return secret


def _variable(name: str) -> tuple[str, str]:
    secret = os.environ.get(name, "").strip()
    return secret, "" if secret else "the driver's environment has no such variable"


def _file(name: str) -> tuple[str, str]:
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe could block
            return "", "the driver's machine has no regular file there"
        with path.open("rb") as file:
            secret = file.read(_LARGEST + 1).decode("utf-8-sig").strip()  # some editors write a byte order mark
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return "", f"the driver cannot read the file: {why}"
    return secret, "" if 0 < len(secret) <= _LARGEST else f"the file must contain 1 to {_LARGEST} bytes"
