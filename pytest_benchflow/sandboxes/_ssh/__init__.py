"""How the ssh sandbox works, and machines that only run commands; `ssh.py` is its front."""
