"""Checks of what a rollout left, one claim each: `from pytest_benchflow.checks import check` makes one."""

from pytest_benchflow.checks._check import Check, CheckReport, Finding, check, run_checks
from pytest_benchflow.checks._evidence import NotApplicableError

__all__ = ["Check", "CheckReport", "Finding", "NotApplicableError", "check", "run_checks"]
