"""Expects errors by condition and parameters, not by their sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_ehbalance.errors import EhBalanceError


@contextmanager
def raises(
    error: type[EhBalanceError], condition: str, **parameters: object
) -> Iterator[pytest.ExceptionInfo[EhBalanceError]]:
    """Expect an `error` with this `condition` whose parameters include `parameters`; a compiled pattern must be found
    in the parameter's text."""
    with pytest.raises(error) as caught:
        yield caught
    assert_reports(caught.value, condition, **parameters)


def assert_reports(error: EhBalanceError | None, condition: str, **parameters: Any) -> None:
    assert error is not None
    assert error.condition == condition
    for name, expected in parameters.items():
        found = error.parameters[name]
        assert expected.search(str(found)) if hasattr(expected, "search") else found == expected, (name, found)
