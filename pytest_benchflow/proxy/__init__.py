"""The door between agents and models: record, pass through, replay."""
