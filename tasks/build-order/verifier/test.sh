#!/bin/sh
# A verifier that cannot run leaves no reward, which is not the same as a reward of 0.
exec python3 -I "$BENCHFLOW_VERIFIER_DIR/test_order.py"
