"""Serialization across the sandbox boundary: plain data of known types only.

Objects of the other process never cross. Their content is copied into builtin types, so that they cannot influence a
comparison; an object without a plain form travels as a numbered handle that equals only itself.
Standard library only: the confined process imports this file too.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

MAX_DEPTH = 100
MAX_ITEMS = 1 << 21
_SMALL = 1 << 53


class ValueProblem(ValueError):
    """A value that cannot cross: nested too deeply, or malformed."""


def encode(value: Any, handle: Callable[[Any], dict[str, Any]], depth: int = 0) -> Any:
    """Return a value as JSON data; `handle` makes the stand-in for an object that is not plain.

    Subclasses become their base (a Counter is a dict, a named tuple a tuple): they equal it in Python too.
    """
    if depth > MAX_DEPTH:
        raise ValueProblem(f"the value is nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, int):
        number = int.__index__(value)
        # JSON numbers of any size exist, but Python refuses to print or read very long ones in decimal.
        return number if -_SMALL < number < _SMALL else {"int": hex(number)}
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, list):
        return [encode(item, handle, depth + 1) for item in list.__iter__(value)]
    if issubclass(kind, dict):
        pairs = list(dict.items(value))
        return {"dict": [[encode(key, handle, depth + 1), encode(item, handle, depth + 1)] for key, item in pairs]}
    for base, name in ((tuple, "tuple"), (set, "set"), (frozenset, "frozenset"), (deque, "deque")):
        if issubclass(kind, base):
            return {name: [encode(item, handle, depth + 1) for item in base.__iter__(value)]}
    if issubclass(kind, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if issubclass(kind, complex):
        return {"complex": [complex(value).real, complex(value).imag]}
    return handle(value)


def decode(data: Any, handle: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return the value of JSON data made by `encode`, in exact builtin types; `handle` resolves stand-ins.

    Raises ValueProblem for anything else, so that data forged by model code never crashes the reader. It may still
    take the reader long: hashes can be made to collide.
    """
    left = MAX_ITEMS

    def value(data: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueProblem(f"the value has more than {MAX_ITEMS:,} elements")
        if depth > MAX_DEPTH:
            raise ValueProblem(f"the value is nested deeper than {MAX_DEPTH}")
        if data is None or isinstance(data, bool | int | float | str):
            return data
        if isinstance(data, list):
            return [value(item, depth + 1) for item in data]
        if isinstance(data, dict) and "handle" in data:
            return handle(data)
        if isinstance(data, dict) and len(data) == 1:
            ((name, content),) = data.items()
            try:
                if name == "int":
                    return int(content, 16)
                if name == "bytes":
                    return bytes.fromhex(content)
                if name == "complex":
                    return complex(*content)
                if name == "dict":
                    return {value(key, depth + 1): value(item, depth + 1) for key, item in content}
                kind = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}[name]
                return kind(value(item, depth + 1) for item in content)
            except (KeyError, TypeError, ValueError) as problem:
                raise ValueProblem(f"{name!r} holds no value: {problem}") from None
        raise ValueProblem(f"{type(data).__name__} is no value")

    return value(data, 0)


def loads(line: bytes) -> Any:
    """Return the JSON data of one line; raises ValueProblem."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise ValueProblem(f"not JSON: {problem}") from None


def no_handle(_: Any) -> Any:
    """Refuse stand-ins: for `decode` and `encode` where only plain values may cross."""
    raise ValueProblem("the value has no plain form")


def fingerprint(data: Any) -> str:
    """Return one text per encoded value: sets and dicts sorted, types kept apart (1, 1.0 and True).

    Handles are represented by their type only, because identity means nothing between two programs.
    """
    if isinstance(data, list):
        return "[" + ",".join(map(fingerprint, data)) + "]"
    if isinstance(data, dict):
        if "handle" in data:
            return f"<{data.get('type')}>"
        ((name, content),) = data.items()
        if not isinstance(content, list):
            return f"{name}:{content}"
        parts = [fingerprint(item) for item in content]
        return f"{name}({','.join(sorted(parts) if name in ('set', 'frozenset', 'dict') else parts)})"
    return json.dumps(data)


def shortened(text: str) -> str:
    """Return a text as it is up to 4,000 characters, else its hash."""
    if len(text) <= 4000:
        return text
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def excerpt(value: Any) -> str:
    """Return a value as text, at most 60 characters of it."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        return f"a large {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def same_output(printed: str, expected: str) -> bool:
    """Return whether two outputs are equal as LiveCodeBench compares them.

    Line by line without outer white space; a pair of lines that differs as text is equal when all its words are
    decimal numbers and these are equal.
    """
    from decimal import Decimal, InvalidOperation  # these two imports would slow down every start of a process

    printed, expected = printed.strip(), expected.strip()
    if printed.count("\n") != expected.count("\n"):
        return False
    for ours, theirs in zip(printed.split("\n"), expected.split("\n"), strict=True):
        if ours.strip() != theirs.strip():
            try:
                if [Decimal(word) for word in ours.split()] != [Decimal(word) for word in theirs.split()]:
                    return False
            except InvalidOperation:
                return False
    return True


def same_value(a: Any, b: Any) -> bool:
    """Return whether two plain values are equal including their types, as in JSON.

    Integers and floats are numbers and compare as such; a bool equals only a bool; a tuple is a list (JSON has one
    sequence). Anything that is not plain equals nothing.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return type(a) is type(b) and a == b
    if type(a) in (int, float) and type(b) in (int, float):
        return bool(a == b)
    if type(a) in (list, tuple) and type(b) in (list, tuple):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is not type(b):
        return False
    if type(a) is dict:
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    return type(a) in (str, bytes, complex, set, frozenset, type(None)) and bool(a == b)
