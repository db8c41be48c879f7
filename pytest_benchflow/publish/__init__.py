"""Send healthy rollouts to a dataset repository of the Hugging Face Hub: choose, redact, name, compare, commit."""
