"""Speed of our own hot paths, each beside its floor on the same machine in the same run: `make bench`."""
