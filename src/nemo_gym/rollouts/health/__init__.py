"""Health checks and their types, by their public paths."""
