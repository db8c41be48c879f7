"""The way to a model: the recording gateway, and the upstreams behind it."""
