"""Detect, redact and resolve secrets.

Spark shows options in plans, errors, event logs and its UI, and operating systems show command lines. So a secret must
be passed by reference, or as an option whose name or value makes Spark hide it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import unquote

from spark_ehbalance.errors import OptionError

#: The forms of a reference to a secret. Only the driver resolves it.
REFERENCES = "env:NAME (an environment variable of the driver) or file:PATH (a file on the driver's machine)"

#: The default of `spark.redaction.regex`: Spark hides options whose name or value matches it.
_HIDDEN_BY_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")

#: Maximum size of a file that contains a secret, in bytes. A Google service account key, the longest kind, is about 3
#: KB.
_LARGEST = 65536

#: Matches text that is certainly a secret.
_SECRET = re.compile(
    # `SharedAccessKey=…`, `sig=…` and similar
    r"(?i:sharedaccess(key|signature)\s*=(?!env:|file:))"
    r"|(?i:(account_?key|access_?key|signature|\bsig|secret|password|token)\"?\s*[=:]\s*(?!env:|file:)[^\s;&]{8})"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a password in an address
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY|private_key\\*\"\s*:"
    r"|[\w.~%-]{3}\d[Qq](?:~|%7[Ee])[\w.~%-]{31}"  # an Entra ID client secret
    r"|\beyJ[\w-]{8,1000}\.[\w-]{8}"  # an Entra ID or Google token, whose first part is short
    # an Event Hubs or storage account key, or a signature
    r"|(?<![A-Za-z0-9+/_%-])([A-Za-z0-9+/_-]|%2[BbFf]){16,}(=|%3[Dd]){1,2}(?!\w)"
)

#: A certificate is public, though its last line may look like a key.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

#: Matches text that may be a secret: a value whose name suggests a key, a long run of letters and digits (with slashes,
#: if it is not a path), or a password before a host. No alternative backtracks over the whole text, because that could
#: take minutes.
_RUN = re.compile(
    r"(?i:key|sig|signature|secret|password|token)\s*="
    r"|(?<![A-Za-z0-9+=%])(?=[A-Za-z+=%]*\d)(?=[\d+=%]*[A-Za-z])[A-Za-z0-9+=%]{20,}"
    r"|^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+=%][A-Za-z0-9+=%/]{31,}$"
    r"|[^/\s@]:[^/@:]+@"
)

#: Matches the names and aliases of secret options in delta-rs and object_store. Other option names that contain these
#: words are for addresses, paths, switches and ids.
_SECRET_NAME = re.compile(r"(?i)((?<!kms_)key(_id|_base64)?|secret|token|password|sas)(_dynamodb)?$")

#: Maximum number of characters of a value in an error message. A long address fits.
_MAX_SHOWN = 500

#: Replaces a value that could be a secret.
HIDDEN = "(not shown, as it could be a secret)"


def looks_secret(text: str) -> bool:
    """Whether `text` is certainly a key, a signed address or a connection string."""
    return _SECRET.search(_CERTIFICATE.sub("", text)) is not None


def is_secret_name(storage_option: str) -> bool:
    """Whether the delta-rs option with this name contains a secret."""
    return _SECRET_NAME.search(storage_option) is not None


def is_hidden_by_spark(value: str) -> bool:
    """Whether Spark hides an option with this value, whatever its name."""
    return _HIDDEN_BY_SPARK.search(value) is not None


def may_be_secret(text: str) -> bool:
    """Whether `text` may be a secret. Messages must not contain such text."""
    return looks_secret(text) or _RUN.search(text) is not None


def redacted(value: str) -> str:
    """`value` for an error message: hidden if it may be a secret in the wrong option, and truncated if it is long."""
    if may_be_secret(value):
        return HIDDEN
    return repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")


def secret_values(storage_options: Mapping[str, str]) -> set[str]:
    """The values that may be secrets, of `storage_options` and of environment variables for storages."""
    variables = {name: value for name, value in os.environ.items() if re.match("(?i)azure_|aws_|google_", name)}
    options = variables | dict(storage_options)
    return {value for name, value in options.items() if value and (is_secret_name(name) or may_be_secret(value))}


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` without the `secrets` and the signatures of SAS tokens among them. Signatures are also found if they are
    escaped, because clients escape them and gateways quote requests in error pages."""
    given = [secret for secret in secrets if secret]
    signatures = [found for sas in given for found in re.findall(r"(?:^|[?&])sig=([^&]+)", unquote(sas))]
    patterns = [*map(re.escape, given), *("".join(map(_with_escapes, signature)) for signature in signatures)]
    return re.sub("|".join(patterns), HIDDEN, text, flags=re.IGNORECASE) if patterns else text


def _with_escapes(character: str) -> str:
    """A pattern for `character` and its escapes in addresses, HTML and JSON."""
    plain, code = re.escape(character), ord(character)
    return rf"\\{{0,4}}(?:{plain}|{escape(plain)}|%(?:25)*{code:02X}|&#0*{code};|&#x0*{code:X};|u00{code:02X})"


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
            return "", "it is not a regular file on the driver's machine"
        with path.open("rb") as file:
            secret = file.read(_LARGEST + 1).decode("utf-8-sig").strip()  # some editors write a byte order mark
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return "", f"the driver cannot read the file: {why}"
    return secret, "" if 0 < len(secret) <= _LARGEST else f"the file must contain 1 to {_LARGEST} bytes"
