"""Run the command line as `python -m pytest_benchflow`."""

import sys

from pytest_benchflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
