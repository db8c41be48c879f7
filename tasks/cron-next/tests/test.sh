#!/bin/sh
# cases.py writes the rewards; where it cannot run there are none, which is not the same as a reward of 0.
exec python3 -I /tests/cases.py
