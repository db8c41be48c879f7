"""What is behind the scripted sandbox."""
