"""Turn task directories and rollout directories into pytest items."""
