"""Agents with host-side logic of their own, one file each; the file name is what a user types."""
