"""The settings of an engine's adapter: read from the engine's options, and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")


def read_settings(
    kind: type[T],
    options: Mapping[str, Any],
    *,
    where: str,
    adapter: str,
    engine: str,
    positive: Iterable[str],
) -> T:
    """Makes `kind`, a dataclass whose fields have defaults, among them `fidelity` and `space`.

    where: the engine's name of the options.
    positive: numbers that must be more than 0.
    Raises ValueError that names an option which is unknown, of another type or out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind))}
    for name, value in options.items():
        if name not in fields:
            known = ", ".join(sorted(fields))
            raise ValueError(f"{where}: {name!r} is no option of {adapter}; it has {known}")
        wanted = type(fields[name].default)
        fits = (int, float) if wanted is float else wanted
        if isinstance(value, bool) or not isinstance(value, fits):
            raise ValueError(f"{name}: {value!r} must be of type {wanted.__name__}")
    settings: Any = kind(**options)
    for name in positive:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name}: {getattr(settings, name)!r} must be more than 0")
    if settings.fidelity not in ("", "exact", "dense"):
        raise ValueError(
            f"fidelity: {settings.fidelity!r} must be 'exact' or 'dense': {engine}'s attention "
            "cannot mask the tokens that a sparse page leaves out"
        )
    if not 1 <= len(settings.space) <= 40:
        raise ValueError(f"space: {settings.space!r} must have 1 to 40 characters")
    return cast(T, settings)
