"""Kubernetes-style quantities: text to numbers and back, with one clear error.

For: CPU shares and byte counts in specs. FfDL's old manifests write ``2Gb``: read as 10^9 bytes,
in any letter case, as FfDL's parser did. What the API server itself gives back has more forms than
people write (``1e3``, ``100n``, ``2Ei``): :func:`parse_kubernetes`. Not for: bits; nothing here
means gigabits.
"""

import math
import re
from decimal import Decimal

_NUMBER = re.compile(r"^([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)$")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_BYTES = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
# FfDL's own units (restapi manifest reader): decimal, letter case does not count.
_FFDL_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
               "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
# The API's own grammar: a signed number, then a suffix or a decimal exponent.
_API = re.compile(
    r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)?|[eE]([+-]?[0-9]{1,3}))$"
)
_API_UNITS = {
    **{name: Decimal(factor) for name, factor in _BYTES.items() if name != "K"},
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "E": Decimal(10**18), "Ei": Decimal(2**60),
}  # fmt: skip
_KIB = 1024
_SIXTY = 60  # seconds of a minute, minutes of an hour
API_ALLOWED = "a quantity of the Kubernetes API, for example 8Gi, 500m or 1e3"
MEMORY_ALLOWED = "a number of bytes with K, M, G, T or Ki, Mi, Gi, Ti, for example 8Gi"
CPU_ALLOWED = "cores, for example 2, 0.5 or 500m"


class QuantityError(ValueError):
    """A text is no quantity. ``allowed`` says what would be one."""

    def __init__(self, found: object, allowed: str) -> None:
        super().__init__(f"found {found!r}, allowed: {allowed}")
        self.found = found
        self.allowed = allowed


def parse_bytes(value: object) -> int:
    """Bytes from a number or from text such as ``8Gi``, ``512M``, ``2Gb``."""
    number, unit = _split(value, MEMORY_ALLOWED)
    factor = _BYTES.get(unit) or _FFDL_BYTES.get(unit.lower())
    if factor is None:
        raise QuantityError(value, MEMORY_ALLOWED)
    return int(number * factor)


def parse_milli_cpu(value: object) -> int:
    """Thousandths of a core from ``2``, ``0.5`` or ``500m``."""
    number, unit = _split(value, CPU_ALLOWED)
    if unit not in ("", "m"):
        raise QuantityError(value, CPU_ALLOWED)
    return int(number if unit == "m" else number * 1000)


def parse_kubernetes(value: object) -> Decimal:
    """The number that a quantity of the Kubernetes API stands for: bytes, cores, or a count."""
    text = str(value) if isinstance(value, (int, float, str)) else ""
    match = _API.match(text)
    if match is None or isinstance(value, bool):
        raise QuantityError(value, API_ALLOWED)
    number, unit, exponent = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _API_UNITS[unit or ""]


def format_bytes(count: int) -> str:
    """Bytes as text with one decimal and a binary unit, for people."""
    if count < _KIB:
        return f"{count} B"
    size, units = count / _KIB, ["KiB", "MiB", "GiB", "TiB"]
    while size >= _KIB and len(units) > 1:
        size /= _KIB
        units.pop(0)
    return f"{size:.1f} {units[0]}"


def format_duration(seconds: float) -> str:
    """Seconds as ``0.4s``, ``12.3s``, ``4m05s`` or ``2h10m``, for people."""
    if round(seconds, 1) < _SIXTY:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), _SIXTY)
    if minutes < _SIXTY:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, _SIXTY)
    return f"{hours}h{minutes:02d}m"


def _split(value: object, allowed: str) -> tuple[Decimal, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise QuantityError(value, allowed)
    if not isinstance(value, str) and math.isfinite(value) and value >= 0:
        return Decimal(str(value)), ""
    match = _NUMBER.match(str(value).strip())
    if match is None:
        raise QuantityError(value, allowed)
    return Decimal(match.group(1)), match.group(2)
