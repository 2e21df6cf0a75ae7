"""Servers: what runs them, what calls them, and the bases that model, agent and resources servers are written on.

Import from the modules: a model server that only passes bytes on needs none of the wire types that the others load.
"""
