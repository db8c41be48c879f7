#!/bin/sh
# score.py writes the reward; where it cannot run there is none, which is not the same as a reward of 0.
exec python3 -I /tests/score.py
