"""Server errors are sanitized."""

from __future__ import annotations

import pytest
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.eventhub.client_errors import error_message


@pytest.mark.parametrize("kind", [EventHubError, RuntimeError])
def test_error_messages_are_short_and_contain_no_secrets(kind: type[Exception]) -> None:
    assert error_message(kind("The partition is away.")) == "The partition is away."
    assert len(error_message(kind("x" * 3_000_000))) == 1000
    token = "SharedAccessSignature sr=sb%3a%2f%2fns&sig=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY%3d&se=1&skn=key"
    assert "MDEyMzQ1" not in error_message(kind(f"You sent {token}"))
