"""Tests of what CI runs."""
