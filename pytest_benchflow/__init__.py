"""Run benchmark tasks for coding agents, and every check of what they leave, as pytest items."""

import pytest

__version__ = "0.1.0"

# Shipped checks are plain asserts; rewriting must be set up before they are imported (an editable install loses it).
pytest.register_assert_rewrite("pytest_benchflow.checks")
