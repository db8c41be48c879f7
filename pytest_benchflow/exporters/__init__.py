"""Export formats, one a file: what trainers and other tools read, made of the raw exchanges."""
