"""Limits of the JVM without which a short Avro body could end it."""

from __future__ import annotations

import re

import pytest

from spark_ehbalance import shipped
from spark_ehbalance.jobs.parsing import AVRO_LIMITS, check_decimals, missing_limits
from spark_ehbalance.jobs.settings import SettingError

_ALL = [f"-D{name}=1048576" for name in AVRO_LIMITS]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ("", 3),
        (" ".join(_ALL), 0),
        (f"-Xmx1g '{_ALL[0]}' \"{_ALL[1]}\" {_ALL[2]}", 0),
        (" ".join(_ALL[1:]), 1),
        (" ".join(_ALL) + "0000", 1),
        (" ".join(_ALL) + "x", 1),
        (" ".join([*_ALL, f"-D{AVRO_LIMITS[0]}=0"]), 1),  # the last one holds
        (f"-Dorg.apache.avro.limits.string.maxLength=null {' '.join(_ALL[1:])}", 1),
    ],
)
def test_limits_that_are_not_set(options: str, missing: int) -> None:
    assert len(missing_limits(options)) == missing


def _decimal(precision: int, kind: object = "bytes", **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": "decimal", "precision": precision, "scale": 2, **more}


@pytest.mark.parametrize("cut", [_decimal(10), _decimal(18, "fixed", size=9, name="f")])
def test_decimals_that_spark_cuts_to_64_bits_are_refused(cut: object) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "p", "type": ["null", {"type": "array", "items": cut}]}],
    }
    with pytest.raises(SettingError, match='write "precision": 38, which reads the same bytes'):
        check_decimals(schema)


@pytest.mark.parametrize("whole", ["bytes", _decimal(38), _decimal(19), _decimal(10, "fixed", size=8, name="f")])
def test_other_decimals_are_taken(whole: object) -> None:
    check_decimals({"type": "record", "name": "r", "fields": [{"name": "p", "type": whole}]})


@pytest.mark.parametrize("side", ["driver", "executor"])
def test_the_shipped_settings_have_the_limits(side: str) -> None:
    text = (shipped.folder() / "conf" / "parse_to_delta.conf").read_text()
    [options] = re.findall(rf"^spark\.{side}\.extraJavaOptions +(.*)$", text, re.MULTILINE)
    assert not missing_limits(options)
