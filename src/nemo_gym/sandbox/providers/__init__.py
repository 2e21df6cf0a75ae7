"""Sandbox providers: what each offers (`base`), and the one that needs nothing installed (`local`)."""
