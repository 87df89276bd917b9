"""A container, accessed through `azure-storage-blob`: one request per call, with this package's errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.eventhub.tokens import TokenUnavailableError
from spark_ehbalance.lease_table.blob.layout import Metadata
from spark_ehbalance.lease_table.blob.locations import OPTIONS, account, account_and_container, known_options
from spark_ehbalance.lease_table.identity import split

#: The version that the SDKs' stores use.
_API_VERSION = "2019-07-07"

#: Error codes of requests whose condition was not met.
_NOT_MET = (None, "ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists", "ContainerAlreadyExists")

#: Environment variables that set options, as for a Delta table.
_VARIABLES = {f"AZURE_STORAGE_{name.upper()}": plain for name, plain in OPTIONS.items() if name != "credential"}


_NO_CONTAINER = "it does not exist"


class LostRaceError(Exception):
    """Another writer was faster, so the request's condition was not met."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob after a request. `modified_ms` is its Last-Modified, by the service's clock."""

    metadata: Metadata
    etag: str
    modified_ms: int


class Container:
    """The container at `location`. Thread-safe. Requests are not retried, because if a request succeeded but its
    response was lost, the retry's condition would not be met."""

    def __init__(self, location: str, options: Mapping[str, str], patience: float) -> None:
        """Requests time out after `patience` seconds. Raises `OptionError`."""
        self._client = _client(location, options, patience)
        self._name = f"The container at {location}"

    def exists(self) -> bool:
        """Whether the container exists. The check lists the container, which requires no additional rights. Raises
        `StoreUnavailableError`."""
        first = self._client.list_blobs(results_per_page=1).by_page()
        return self._request("reached", lambda: [*next(first, ())]) is not None

    def create(self) -> None:
        """Create the container unless it exists. Raises `StoreUnavailableError`."""
        from azure.core.exceptions import ResourceExistsError

        def create() -> None:
            with contextlib.suppress(ResourceExistsError):
                self._client.create_container()

        self._request("created", create)

    def list(self, prefix: str) -> dict[str, Blob]:
        """All blobs whose names begin with `prefix`, by name. Raises `StoreUnavailableError`."""

        def found() -> dict[str, Blob]:
            blobs = self._client.list_blobs(name_starts_with=prefix, include=["metadata"])
            return {blob.name: _blob(blob.metadata, blob.etag, blob.last_modified) for blob in blobs}

        blobs: dict[str, Blob] | None = self._request("read", found)
        if blobs is None:
            raise self._unavailable("read", _NO_CONTAINER)
        return blobs

    def replace(self, name: str, metadata: Mapping[str, str], etag: str | None) -> Blob:
        """Set the metadata of the blob if it still has `etag` (None: if it does not exist). A deleted blob is
        recreated. Raises `LostRaceError` or `StoreUnavailableError`."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceNotFoundError

        def replaced() -> Blob:
            blob = self._client.get_blob_client(name)
            if etag is not None:
                same: dict[str, Any] = {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}
                try:
                    return _written(metadata, blob.set_blob_metadata(dict(metadata), **same))
                except ResourceNotFoundError as gone:
                    if getattr(gone, "error_code", None) == "ContainerNotFound":
                        raise
            return _written(metadata, blob.upload_blob(b"", metadata=dict(metadata), overwrite=False))

        return self._written(replaced)

    def put(self, name: str, metadata: Mapping[str, str]) -> Blob:
        """Set the metadata of the blob unconditionally. Raises `StoreUnavailableError`."""
        from azure.core.exceptions import ResourceNotFoundError

        def put() -> Blob:
            blob = self._client.get_blob_client(name)
            try:
                return _written(metadata, blob.set_blob_metadata(dict(metadata)))
            except ResourceNotFoundError:
                return _written(metadata, blob.upload_blob(b"", metadata=dict(metadata), overwrite=True))

        return self._written(put)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _written(self, request: Callable[[], Blob]) -> Blob:
        written: Blob | None = self._request("written", request)
        if written is None:
            raise self._unavailable("written", _NO_CONTAINER)
        return written

    def _request(self, action: str, request: Callable[[], Any]) -> Any:
        """The result of `request`; None if the container does not exist."""
        from azure.core.exceptions import (
            AzureError,
            HttpResponseError,
            ResourceExistsError,
            ResourceModifiedError,
            ResourceNotFoundError,
        )

        try:
            return request()
        except ResourceNotFoundError:
            return None
        except TokenUnavailableError as error:
            raise self._unavailable(action, error.reason) from None
        except AzureError as error:
            text, code = str(error).splitlines()[0], getattr(error, "error_code", None)
            if isinstance(error, (ResourceExistsError, ResourceModifiedError)) and code in _NOT_MET:
                raise LostRaceError from None
            if isinstance(error, HttpResponseError) and error.status_code is not None:
                text = f"{error.status_code} {getattr(code, 'value', code) or error.reason}"
            raise self._unavailable(action, text) from None  # the SDK's error may contain the signature

    def _unavailable(self, action: str, reason: str) -> StoreUnavailableError:
        return StoreUnavailableError("EHB_LEASE_TABLE_UNAVAILABLE", what=self._name, action=action, reason=reason)


def _blob(metadata: Metadata, etag: str, modified: datetime) -> Blob:
    return Blob(metadata, etag.strip('"'), round(modified.timestamp() * 1000))  # a listing has no quotes


def _written(metadata: Mapping[str, str], answer: Mapping[str, Any]) -> Blob:
    return _blob(metadata, answer["etag"], answer["last_modified"])


def _client(location: str, options: Mapping[str, str], patience: float) -> Any:
    try:
        from azure.storage.blob import ContainerClient
    except ImportError:
        raise OptionError(
            "EHB_PACKAGE_MISSING",
            option=f"leaseTable={location}",
            package="azure-storage-blob",
            install="spark-ehbalance[blob]",
        ) from None
    service, container = account_and_container(location)
    credential = _credential(location, known_options(options))
    try:
        return ContainerClient(
            service,
            container,
            credential=credential,
            api_version=_API_VERSION,
            connection_timeout=patience,
            read_timeout=patience,
            retry_total=0,
        )
    except ValueError as problem:  # for example, the client sends tokens only over https
        both = f"leaseTable={location} and its credential"
        raise OptionError("EHB_OPTIONS_CONFLICT", options=both, reason=str(problem)) from None


def _credential(location: str, options: Mapping[str, str]) -> Any:
    """A key or a signature from the options or, if they have no credential, from the environment; otherwise Entra
    ID."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    given = dict(options)
    if not {"account_key", "sas_token", "credential"} & given.keys():
        given |= {plain: os.environ[name] for name, plain in _VARIABLES.items() if name in os.environ}
    if "account_key" in given:
        return AzureNamedKeyCredential(given.get("account_name", account(location)), given["account_key"])
    if "sas_token" in given:
        return AzureSasCredential(given["sas_token"].lstrip("?"))
    by_name, _ = split({"credential": "default"} | given)
    assert by_name is not None
    return by_name.tokens()
