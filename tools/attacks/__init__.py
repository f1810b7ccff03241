"""Scenes of ``tools/attack.py``: modules with a generator ``scene(world)`` that yields after each trial."""

SCENES = (
    "texts", "clients", "connections", "fields", "namespaces", "mixes", "engines", "forks", "lines",
    "caches", "files", "records", "lives", "stores",
)  # fmt: skip
"""In this order: a scene with long trials takes time from those after it, whose trials are short."""
