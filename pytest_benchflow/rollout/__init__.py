"""Run one rollout: sandbox, gateway, agent, verifier, records."""
