"""What a rollout leaves on disk: names, journals, results, redaction."""
