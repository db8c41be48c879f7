"""Sandbox backends, one file each; the file name is what a user types."""
