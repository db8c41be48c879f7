"""Agents as data: one manifest a file, and their loader."""
