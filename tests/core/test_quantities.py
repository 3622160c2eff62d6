"""Quantities: text to numbers, and numbers to text for people."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.quantities import (
    API_ALLOWED,
    CPU_ALLOWED,
    MEMORY_ALLOWED,
    QuantityError,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_kubernetes,
    parse_milli_cpu,
)

GOOD_BYTES = [
    (0, 0), (5, 5), ("5", 5), (1.5e9, 1_500_000_000), (8e18, 8 * 10**18), (10**30, 10**30),
    ("8Gi", 8 * 2**30), ("512Mi", 512 * 2**20), ("1Ti", 2**40), ("2Pi", 2 * 2**50), ("3Ki", 3072),
    ("64k", 64_000), ("64K", 64_000), ("5M", 5 * 10**6), ("1G", 10**9), ("1T", 10**12),
    ("1P", 10**15), ("0.5Gi", 2**29), (".5k", 500), (" 7 Gi ", 7 * 2**30),
    # FfDL's manifests: decimal, any letter case
    ("2Gb", 2 * 10**9), ("2GB", 2 * 10**9), ("1gb", 10**9), ("300mb", 300 * 10**6), ("9kb", 9000),
    ("1Tb", 10**12), ("100b", 100), ("4GiB", 4 * 2**30), ("1tib", 2**40),
]  # fmt: skip
NO_QUANTITY = [
    None, True, False, [], {}, "", "Gi", "8Gx", "8 G i", "-5", -5, -0.5, "1e3", "8,5Gi", "5e", "٣",
    math.nan, math.inf, "nan", "0x10",
]  # fmt: skip


@pytest.mark.parametrize(("written", "count"), GOOD_BYTES)
def test_bytes(written: object, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize(
    ("written", "milli"),
    [(2, 2000), (0.5, 500), ("2", 2000), ("0.25", 250), ("500m", 500), ("1500m", 1500), ("0", 0)],
)
def test_cores(written: object, milli: int) -> None:
    assert parse_milli_cpu(written) == milli


@pytest.mark.parametrize("written", NO_QUANTITY)
def test_what_is_no_quantity_is_told_with_what_is(written: object) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_bytes(written)
    assert caught.value.found is written
    assert caught.value.allowed == MEMORY_ALLOWED
    assert str(caught.value) == f"found {written!r}, allowed: {MEMORY_ALLOWED}"


@pytest.mark.parametrize("written", [*NO_QUANTITY, "2Gi", "2k", "5M"])
def test_cores_have_no_unit_but_m(written: object) -> None:
    with pytest.raises(QuantityError, match="cores") as caught:
        parse_milli_cpu(written)
    assert caught.value.allowed == CPU_ALLOWED


@given(st.integers(0, 2**60), st.sampled_from(["", "k", "Ki", "Mi", "Gi", "Ti"]))
def test_a_whole_number_of_units_is_exact(number: int, unit: str) -> None:
    factor = {"": 1, "k": 1000, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[unit]
    assert parse_bytes(f"{number}{unit}") == number * factor


@given(st.integers(0, 2**70))
def test_people_see_at_most_four_digits_before_the_unit(count: int) -> None:
    number, _, unit = format_bytes(count).partition(" ")
    assert unit in ("B", "KiB", "MiB", "GiB", "TiB")
    factor = 1024.0 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert float(number) * factor == pytest.approx(count, rel=0.06, abs=0.5)
    assert unit == "TiB" or float(number) <= 1024


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"),
     (5000 * 2**40, "5000.0 TiB")],
)  # fmt: skip
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (0.44, "0.4s"), (59.94, "59.9s"), (59.96, "1m00s"), (60, "1m00s"),
     (245, "4m05s"), (3599.4, "59m59s"), (3600, "1h00m"), (7800, "2h10m"), (90000, "25h00m")],
)  # fmt: skip
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


OF_THE_API = [
    ("8Gi", 8 * 2**30), ("500m", "0.5"), ("2", 2), (4, 4), (0.5, "0.5"), ("1e3", 1000),
    ("12E2", 1200), ("2E", 2 * 10**18), ("1Ei", 2**60), ("100n", "1e-7"), ("3u", "3e-6"),
    ("64k", 64_000), ("1.5Gi", 3 * 2**29), ("5.", 5), (".5", "0.5"), ("-1", -1), ("+2", 2),
    ("128974848000m", 128_974_848),
]  # fmt: skip


@pytest.mark.parametrize(("written", "number"), OF_THE_API)
def test_quantities_of_the_api(written: object, number: int | str) -> None:
    assert parse_kubernetes(written) == Decimal(number)


@pytest.mark.parametrize(
    "written", [None, True, [], "", "Gi", "2Gb", "64K", "1 Gi", "1e", "e3", "٣"]
)
def test_what_the_api_does_not_write(written: object) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_kubernetes(written)
    assert (caught.value.found, caught.value.allowed) == (written, API_ALLOWED)
