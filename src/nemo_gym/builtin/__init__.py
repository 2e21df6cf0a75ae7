"""Shipped servers, one folder each, in the folder format that users' own servers have.

They are written against the public import paths, as a user's server is, and are found through the same search roots.
"""
