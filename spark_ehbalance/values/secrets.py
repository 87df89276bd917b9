"""Secrets: what could be one, and how one is given without being shown.

Spark shows options in plans, errors, event logs and its UI, and a system shows command lines. So a secret is given by
reference, or under a name or with a value that Spark hides.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from spark_ehbalance.errors import OptionError

#: How a secret is given by reference. It is followed in the driver only.
REFERENCES = "env:NAME (a variable of the environment that the driver starts in) or file:PATH (a file on its machine)"

#: Spark's own default of `spark.redaction.regex`: it hides options whose name or value this fits.
_HIDDEN_BY_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")

#: Bytes of the largest file that is taken for a secret: a Google service account, the longest kind, has 3 KB.
_LARGEST = 65536

#: What only a secret looks like.
_SECRET = re.compile(
    # `SharedAccessKey=…`, `sig=…` and their kind
    r"(?i:sharedaccess(key|signature)\s*=)"
    r"|(?i:(account_?key|access_?key|signature|\bsig|secret|password|token)\"?\s*[=:]\s*(?!env:|file:)[^\s;&]{8})"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a password in an address
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY|private_key\\*\"\s*:"
    r"|[\w.~%-]{3}\d[Qq](?:~|%7[Ee])[\w.~%-]{31}"  # a client secret of Entra ID
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}"  # a token of Entra ID or Google
    # a key of Event Hubs or of a storage account, a signature
    r"|(?<![A-Za-z0-9+/_%-])([A-Za-z0-9+/_-]|%2[BbFf]){16,}(=|%3[Dd]){1,2}(?!\w)"
)

#: Public, though its last line may look like a key.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

#: What could be a key: what has such a name; letters and digits in a long run, with slashes where the whole is no path.
_RUN = re.compile(
    r"(?i:key|sig|signature|secret|password|token)\s*="
    r"|(?<![A-Za-z0-9+=%])(?=[A-Za-z+=%]*\d)(?=[\d+=%]*[A-Za-z])[A-Za-z0-9+=%]{20,}"
    r"|^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+=%][A-Za-z0-9+=%/]{31,}$"
)

#: The end of the names of delta-rs's and object_store's options that hold a secret, with all their aliases; others with
#: these words are addresses, paths, switches and ids.
_SECRET_NAME = re.compile(r"(?i)((?<!kms_)key(_id|_base64)?|secret|token|password|sas)(_dynamodb)?$")


def looks_secret(text: str) -> bool:
    """Whether `text` is so like a key, a signed address or a connection string that it is nothing else."""
    return _SECRET.search(_CERTIFICATE.sub("", text)) is not None


def names_secret(storage_option: str) -> bool:
    """Whether delta-rs's option of this name holds a secret."""
    return _SECRET_NAME.search(storage_option) is not None


def hidden_by_spark(value: str) -> bool:
    """Whether Spark hides an option by this value, whatever the option's name."""
    return _HIDDEN_BY_SPARK.search(value) is not None


def could_be_secret(text: str) -> bool:
    """Whether `text` had better not be repeated: it looks like a secret, or like a key without its form."""
    return looks_secret(text) or _RUN.search(text) is not None


def shown(value: str) -> str:
    """`value` for an error message, unless it could be a secret that was given in the wrong place."""
    return "(not shown, as it could be a secret)" if could_be_secret(value) else repr(value)


def is_reference(value: str) -> bool:
    return value.lower().startswith(("env:", "file:"))


def resolved(option: str, value: str) -> str:
    """The secret that `value` refers to, or `value` itself if it is no reference. Raises `OptionError`."""
    if not is_reference(value):
        return value
    kind, _, name = value.partition(":")
    secret, problem = _variable(name) if kind.lower() == "env" else _file(name)
    if problem:
        raise OptionError(f"option {option}={shown(value)} is wrong: {problem}")
    return secret


def _variable(name: str) -> tuple[str, str]:
    secret = os.environ.get(name, "").strip()
    return secret, "" if secret else "the environment in which the driver was started has no such variable"


def _file(name: str) -> tuple[str, str]:
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            return "", "what is there where the driver runs is no regular file"
        with path.open("rb") as file:
            secret = file.read(_LARGEST + 1).decode("utf-8-sig").strip()  # some editors write a mark at the beginning
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        return "", f"the file cannot be read where the driver runs: {why}"
    return secret, "" if 0 < len(secret) <= _LARGEST else f"the file must hold 1 to {_LARGEST} bytes"
