"""Wire formats of model providers, one file each: request and response to turns, outcome, usage."""
