"""Our line in place of a traceback. That Spark shows it is tested in `tests/spark/test_mistakes.py`."""

from __future__ import annotations

import io

import pyspark.util
import pytest

from spark_ehbalance.errors import MissingError, OptionError
from spark_ehbalance.spark import error_line
from spark_ehbalance.spark.error_line import line, single_line_errors


def test_a_text_of_several_lines_is_one() -> None:
    assert line(MissingError("first\n  second")) == r"spark_ehbalance.errors.MissingError: first\n  second"


def test_a_worker_sends_the_line_once_and_instead_of_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]

    def sent(error: BaseException) -> str:
        out = io.BytesIO()
        pyspark.util.handle_worker_exception(error, out)
        return out.getvalue()[8:].decode()

    @single_line_errors()
    def refuse() -> None:
        raise OptionError("option x is wrong")

    with pytest.raises(OptionError) as raised:
        refuse()
    assert sent(raised.value) == "spark_ehbalance.errors.OptionError: option x is wrong"
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
    assert "Traceback" in sent(raised.value) or "NoneType" in sent(raised.value)


@pytest.mark.parametrize(("in_worker", "error"), [(False, OptionError("x is wrong")), (True, ZeroDivisionError())])
def test_a_users_program_and_faults_of_ours_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, in_worker: bool, error: Exception
) -> None:
    if in_worker:
        monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]
    with pytest.raises(type(error)), single_line_errors():
        raise error
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
