"""How the daytona sandbox works; `daytona.py` is its front."""
