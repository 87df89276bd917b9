"""One-line errors instead of tracebacks. `tests/spark/test_mistakes.py` tests that Spark shows them."""

from __future__ import annotations

import io

import pyspark.util
import pytest

from spark_ehbalance.errors import MissingError, OptionError
from spark_ehbalance.spark import error_line
from spark_ehbalance.spark.error_line import line, single_line_errors

ERROR = OptionError("EHB_OPTION_REQUIRED", option="x", reason="y")


def test_multiline_text_becomes_one_line() -> None:
    error = MissingError("EHB_HUB_NOT_FOUND", what="first\n ", problem="second")
    assert line(error).startswith(r"spark_ehbalance.errors.MissingError: [EHB_HUB_NOT_FOUND] first\n  second.")


def test_worker_sends_the_line_once_instead_of_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]

    def sent(error: BaseException) -> str:
        out = io.BytesIO()
        pyspark.util.handle_worker_exception(error, out)
        return out.getvalue()[8:].decode()

    @single_line_errors()
    def refuse() -> None:
        raise ERROR

    with pytest.raises(OptionError) as raised:
        refuse()
    assert sent(raised.value) == f"spark_ehbalance.errors.OptionError: {ERROR}"
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
    assert "Traceback" in sent(raised.value) or "NoneType" in sent(raised.value)


@pytest.mark.parametrize(("in_worker", "error"), [(False, ERROR), (True, ZeroDivisionError())])
def test_tracebacks_of_user_code_and_of_our_bugs_are_kept(
    monkeypatch: pytest.MonkeyPatch, in_worker: bool, error: Exception
) -> None:
    if in_worker:
        monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]
    with pytest.raises(type(error)), single_line_errors():
        raise error
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
