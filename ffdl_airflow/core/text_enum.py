"""An enum whose members are text, alike on every Python from 3.10 (``StrEnum`` came with 3.11)."""

from enum import Enum


class TextEnum(str, Enum):
    """Members compare, format and serialise as their value."""

    def __str__(self) -> str:
        """The value itself."""
        return str(self.value)
