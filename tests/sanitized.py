"""pytest -p sanitized: the extension at PACELINE_NATIVE takes the place of the installed one (make sanitize)."""

from __future__ import annotations

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location("paceline._native", os.environ["PACELINE_NATIVE"])
assert _spec is not None and _spec.loader is not None
sys.modules["paceline._native"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["paceline._native"])
