"""A diary for the terminal."""

__version__ = "1.2"
