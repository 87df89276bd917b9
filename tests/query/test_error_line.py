"""Our line at the end of Spark's text. That workers send nothing else is tested with Spark: `tests/spark`."""

from __future__ import annotations

import io

import pyspark.util
import pytest

from spark_ehbalance.errors import MissingError, OptionError
from spark_ehbalance.spark import error_line
from spark_ehbalance.spark.error_line import ending_with_line, line, told_in_one_line

FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_ERROR] \
Failed when it performs latestOffset: spark_ehbalance.errors.MissingError: no such group: create it SQLSTATE: 38000 \
SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]

Logical Plan:
WriteToMicroBatchDataSource noop-table
"""


def test_our_line_is_added_at_the_end() -> None:
    shown = ending_with_line(FAILED)
    assert shown.startswith(FAILED.rstrip())
    assert shown.splitlines()[-1] == "spark_ehbalance.errors.MissingError: no such group: create it"


def test_of_an_error_and_its_cause_the_error_counts() -> None:
    text = (
        "spark_ehbalance.errors.StoreError: cause\n\nThe above\n\nspark_ehbalance.errors.TargetError: what failed\n end"
    )
    assert ending_with_line(text).splitlines()[-1] == "spark_ehbalance.errors.TargetError: what failed"


def test_a_line_that_is_the_last_is_not_repeated() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create it: spark_ehbalance.errors.OptionError: x is wrong SQLSTATE: 38000"
    )
    assert ending_with_line(text) is text
    server = f"{text}\n\nJVM stacktrace:\n\tat org.apache.spark.Some.thing(Some.scala:1)"
    assert ending_with_line(server).splitlines()[-1] == "spark_ehbalance.errors.OptionError: x is wrong"


def test_the_exception_of_another_source_stays_as_it_is() -> None:
    text = "[STREAM_FAILED] Query terminated with exception: division by zero\n=== Streaming Query ===\n"
    assert ending_with_line(text) is text


def test_a_text_of_several_lines_is_one() -> None:
    assert line(MissingError("first\n  second")) == r"spark_ehbalance.errors.MissingError: first\n  second"


def test_a_worker_sends_the_line_once_and_instead_of_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]

    def sent(error: BaseException) -> str:
        out = io.BytesIO()
        pyspark.util.handle_worker_exception(error, out)
        return out.getvalue()[8:].decode()

    @told_in_one_line()
    def refuse() -> None:
        raise OptionError("option x is wrong")

    with pytest.raises(OptionError) as raised:
        refuse()
    assert sent(raised.value) == "spark_ehbalance.errors.OptionError: option x is wrong"
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
    assert "Traceback" in sent(raised.value) or "NoneType" in sent(raised.value)


def test_a_users_program_is_left_alone() -> None:
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]
    with pytest.raises(OptionError), told_in_one_line():
        raise OptionError("option x is wrong")
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]


def test_faults_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_line, "_in_worker", lambda: True)
    send = pyspark.util.write_with_length  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError), told_in_one_line():
        raise ZeroDivisionError
    assert pyspark.util.write_with_length is send  # type: ignore[attr-defined]
