"""Tests of what only the older libraries do: transformers 4.57.6, DeepSpeed and the modules of vLLM 0.11.2.

They are collected where transformers is older than 5; there a missing DeepSpeed or vLLM is a failure. `make test-paper`
makes that environment beside the main one.
"""

from __future__ import annotations

from importlib import metadata

collect_ignore_glob = [] if metadata.version("transformers").startswith("4.") else ["*.py"]
