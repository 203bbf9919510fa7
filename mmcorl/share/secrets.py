"""Find keys, tokens and passwords in texts that are to be published, and none in names, hashes and pictures."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator

_TOKENS = {
    "Anthropic key": r"sk-ant-[\w-]{20,}",
    "OpenAI key": r"sk-(?:proj-|svcacct-|admin-)?[\w-]{20,}",
    "AWS key": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "W&B key": r"wandb_v\d_\w{20,}",
    "Slack token": r"(?:xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{20,}|hooks\.slack\.com/services/T\w+/B\w+/\w+)",
    "Google key": r"(?:AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{20,})",
    "GitLab token": r"glpat-[\w-]{20,}",
    "Hugging Face token": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "Stripe key": r"(?:[rs]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,}",
    "key of a service": r"(?:npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,}|SG\.[\w-]{22}\.[\w-]{43}"
    r"|shp(?:at|ca|pa|ss)_[a-f0-9]{32}|dop_v1_[a-f0-9]{64}|xai-[A-Za-z0-9]{60,}|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{37}|dapi[a-f0-9]{32}"
    r"|key-[a-f0-9]{32}|\d{8,10}:AA[\w-]{33})",
}
"""What is told by how it begins and by its length."""
_PATTERNS = {kind: re.compile(rf"(?<![A-Za-z0-9_-]){pattern}(?![A-Za-z0-9])") for kind, pattern in _TOKENS.items()}
_PATTERNS["private key"] = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_JWT = re.compile(r"\b(eyJ[\w-]{8,})\.[\w-]{8,}\.[\w-]{8,}")
_BEARER = re.compile(r"\bBearer\s+([\w.~+/-]{16,}=*)")
_GIVEN = re.compile(
    r"(?i)(password|passwd|secret|token|(?:api|access|account|auth)[_-]?key)[\"'`]?\s*[=:]\s*[\"'`]?"
    r"([^\s\"'`<>{}()\[\],;|&]{6,})"
)
_PICTURE = re.compile(r"base64,[A-Za-z0-9+/=]+")
_MIXED = re.compile(r"(?=.*[A-Za-z])(?=.*\d)")
LEAST_ENTROPY = 3.0
"""Bits per character of a value behind a name such as `token`; a word has fewer, random hexadecimal 3.5 and more."""


def secrets(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind and the masked value of everything in a text that is a secret beyond doubt."""
    for number, line in enumerate(text.splitlines(), 1):
        line = _PICTURE.sub("base64,", line)
        taken: set[int] = set()
        for start, kind, value in _found(line):
            if not taken & {*range(start, start + len(value))}:
                taken |= {*range(start, start + len(value))}
                yield number, kind, f"{value[:4]}... of {len(value)} characters"


def _found(line: str) -> Iterator[tuple[int, str, str]]:
    for kind, pattern in _PATTERNS.items():
        for found in pattern.finditer(line):
            if kind == "private key" or (_entropy(found[0]) >= LEAST_ENTROPY and _MIXED.match(found[0])):
                yield found.start(), kind, found[0]
    for found in _JWT.finditer(line):
        if _is_header(found[1]):
            yield found.start(), "JSON web token", found[0]
    for found in _BEARER.finditer(line):
        if _MIXED.match(found[1]) and _entropy(found[1]) >= LEAST_ENTROPY:
            yield found.start(1), "bearer token", found[1]
    for found in _GIVEN.finditer(line):
        name, value = found[1].lower(), found[2]
        least = 2.0 if name.startswith("passw") else LEAST_ENTROPY
        long = len(value) >= (6 if name.startswith("passw") else 12)
        if long and _MIXED.match(value) and _entropy(value) >= least and not value.startswith(("$", "/", "*")):
            yield found.start(2), f"value of {name!r}", value


def _entropy(value: str) -> float:
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts)


def _is_header(part: str) -> bool:
    try:
        header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error):
        return False
    return isinstance(header, dict) and "alg" in header
