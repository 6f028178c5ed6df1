"""Typed, bounds-checked access to a config.json's fields; every fault names file and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from gateup.errors import ConfigError

# Far above any real model (widest MLP known: 425,984; most experts: 512; largest vocabulary:
# 262,208), far below what would make the ledger's row list a burden.
MAX_DIM = 1 << 24
MAX_LAYERS = 4096
MAX_EXPERTS = 65536

_REQUIRED: Any = object()


def _clip(value: object) -> str:
    """A value as an error shows it: short, and without spelling out what a file may hold in it."""
    if isinstance(value, list | tuple | Mapping) and len(value) > 12:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 1 << 200:
        return "a whole number of more than 60 digits"  # repr refuses beyond 4300 digits
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def whole(value: object) -> TypeGuard[int]:
    """Whether it is an int, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


class Config:
    """A mapping with the place it was read from. Each getter takes aliases, first present wins.

    JSON null counts as absent: many configs write null for "not set".
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def sub(self, key: str) -> Config:
        """The object under `key`, read with the same rules."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(key, value, "an object")
        return Config(value, f"{self.where}: {key}")

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """The same config with `defaults` for the keys it does not have (null is having it)."""
        return Config({**defaults, **self.values}, self.where)

    def has(self, *keys: str) -> bool:
        return any(self.values.get(k) is not None for k in keys)

    def raw(self, *keys: str, default: Any = None) -> Any:
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        return default

    def fault(self, key: str, value: object, expected: str) -> ConfigError:
        return ConfigError(
            f"{key} is {_clip(value)}",
            where=f"{self.where}, field {key}",
            expected=expected,
        )

    def missing(self, *keys: str) -> ConfigError:
        return ConfigError(
            f"{keys[0]} is missing",
            where=self.where,
            expected=" or ".join(keys),
            remedy="use the config.json that belongs to the checkpoint",
        )

    def _find(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any] | None:
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        if default is _REQUIRED:
            raise self.missing(*keys)
        return None

    def integer(
        self, *keys: str, default: Any = _REQUIRED, low: int = 1, high: int = MAX_DIM
    ) -> Any:
        """A whole number in [low, high]. `default` (also None) is returned where absent."""
        found = self._find(keys, default)
        if found is None:
            return default
        return self.check_int(*found, low=low, high=high)

    def check_int(self, key: str, value: object, *, low: int = 1, high: int = MAX_DIM) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # some exporters write 4096.0
        if not whole(value) or not low <= value <= high:
            raise self.fault(key, value, f"a whole number from {low} to {high}")
        return value

    def number(self, *keys: str, default: Any = _REQUIRED, low: float = 0.0) -> Any:
        """A finite number not below `low`."""
        found = self._find(keys, default)
        if found is None:
            return default
        return self.check_number(*found, low=low)

    def check_number(self, key: str, value: object, *, low: float = 0.0) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= 1e300  # also false for NaN; float() of a larger int overflows
        ):
            raise self.fault(key, value, f"a finite number, {low} or more")
        return float(value)

    def flag(self, *keys: str, default: Any = _REQUIRED) -> Any:
        found = self._find(keys, default)
        if found is None:
            return default
        key, value = found
        if not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return value

    def text(self, *keys: str, default: Any = _REQUIRED) -> Any:
        found = self._find(keys, default)
        if found is None:
            return default
        key, value = found
        if not isinstance(value, str):
            raise self.fault(key, value, "a string")
        return value

    def integers(
        self, key: str, *, length: int | None = None, low: int = 0, high: int = MAX_DIM
    ) -> list[int]:
        """A list of whole numbers, of exactly `length` entries where one is given."""
        value = self.values.get(key)
        if not isinstance(value, list | tuple):
            raise self.fault(key, value, "a list of whole numbers")
        if length is not None and len(value) != length:
            raise self.fault(key, value, f"a list of {length} whole numbers, not {len(value)}")
        return [self.check_int(f"{key}[{i}]", v, low=low, high=high) for i, v in enumerate(value)]
