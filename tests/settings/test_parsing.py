"""Parsing of durations, numbers and flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.settings.parsing import (
    duration_text,
    flag,
    number,
    one_of,
    parse_delay,
    parse_duration,
    parse_positive_number,
    parse_shift,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5", 1.5),
        ("10s", 10),
        ("500 Milliseconds", 0.5),
        ("2 min", 120),
        ("1 hour", 3600),
        (" 3 SEC ", 3),
    ],
)
def test_durations_are_parsed_to_seconds(text: str, seconds: float) -> None:
    for parse in (parse_duration, parse_delay, parse_shift):
        assert parse(text) == pytest.approx(seconds)
    assert parse_shift(f"-{text.strip()}") == pytest.approx(-seconds)


ANY, FORMS = "a duration", "such as 10 seconds, 500 ms, 2 minutes or 10 (seconds)"


@settings(deadline=None)
@given(st.floats(min_value=0.001, max_value=366 * 24), st.sampled_from(["", "s", " seconds", "ms", " min", "h"]))
def test_any_duration_is_positive(number: float, unit: str) -> None:
    assert parse_duration(f"{number:.4f}{unit}") > 0


@pytest.mark.parametrize("seconds", [0.0125, 0.2, 0.999, 1.0, 1.5, 30.0, 180.0, 1800.0])
def test_duration_text_is_parsed_to_the_duration(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds)


def test_zero_is_accepted_where_allowed() -> None:
    assert parse_delay("0") == parse_delay("0 s") == parse_shift("0") == parse_shift("-0 ms") == 0
    assert number(0)("0") == 0
    assert whole_number(0)("0") == 0


@pytest.mark.parametrize(
    ("parse", "text", "allowed"),
    [
        (parse_duration, "0 s", "a duration above 0, such as 10 seconds, 500 ms, 2 minutes or 10 (seconds)"),
        (parse_delay, "-1 s", "a duration, such as 10 seconds"),
        (parse_delay, "soon", "a duration, such as 10 seconds"),
        (parse_shift, "- 1 s 2", "a duration, with or without a minus sign, such as 10 seconds"),
        (parse_duration, "8785 h", f"{ANY} above 0, {FORMS}, at most 366 days"),
        (parse_delay, "9" * 400 + " h", f"{ANY}, {FORMS}, at most 366 days"),
        (parse_shift, "--1 s", "a duration, with or without a minus sign"),
        (whole_number(1), "0", "a whole number of 1 or more"),
        (whole_number(1, 10), "11", "a whole number from 1 to 10"),
        (number(0, 10), "10.1", "a number from 0 to 10"),
        (number(0), "-1", "a number of 0 or more"),
        (number(0), "inf", "a number of 0 or more"),
        (number(0), "9" * 400, "a number of 0 or more"),
        (number(0), "1e3", "a number of 0 or more"),
        (parse_positive_number, "0", "a number above 0"),
        (parse_positive_number, "nan", "a number above 0"),
        (flag, "yes", "true or false"),
        (one_of("a", "b"), "A", "one of a, b"),
    ],
)
def test_error_lists_allowed_values(parse: Callable[[str], Any], text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(allowed)):
        parse(text)
