"""Door: newer paths of names that also have a path of their own."""
