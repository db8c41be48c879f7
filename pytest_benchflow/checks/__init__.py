"""Checks of what a rollout left, one claim each."""
