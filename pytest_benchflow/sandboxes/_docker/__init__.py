"""How the docker sandbox works; `docker.py` is its front."""
