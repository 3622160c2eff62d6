"""Which adapter reads which kind of source. Adapters are imported on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from ffdl_airflow.stores import base

ADAPTERS: Mapping[str, str] = {
    "local": "ffdl_airflow.stores.local:open_local",
    "code": "ffdl_airflow.stores.code:open_code",
}


def known_kinds() -> tuple[str, ...]:
    """Kinds of data store that this installation can read (``code`` is no data store)."""
    return tuple(sorted(kind for kind in ADAPTERS if kind != "code"))


def require_adapter(kind: str) -> None:
    """Raise NoAdapterError if nothing here reads stores of this kind. For checks before a run."""
    if kind not in ADAPTERS:
        allowed = ", ".join(known_kinds())
        message = f"no adapter for {kind} in this installation; allowed: {allowed}"
        raise base.NoAdapterError(
            message, code=base.NO_ADAPTER, found=kind, allowed=allowed,
            next_step="install the extra that reads it, or copy the data to a local path",
        )  # fmt: skip


def open_store(source: Mapping[str, Any]) -> base.Store:
    """The adapter for a source as ``DataStore.source`` describes it. Nothing is read yet."""
    kind = str(source.get("kind"))
    require_adapter(kind)
    module, _, name = ADAPTERS[kind].partition(":")
    opener = cast(Callable[[Mapping[str, Any]], base.Store], getattr(import_module(module), name))
    return opener(source)
