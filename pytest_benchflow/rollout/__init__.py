"""Run one rollout: sandbox, proxy, agent, verifier, records."""
