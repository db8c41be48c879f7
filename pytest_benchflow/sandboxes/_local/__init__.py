"""How the local sandbox works; `local.py` is its front."""
