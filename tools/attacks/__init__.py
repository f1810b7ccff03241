"""Scenes of ``tools/attack.py``: modules with a generator ``scene(world)`` that yields after each trial."""

SCENES = (
    "mixes",
    "engines",
    "forks",
    "lines",
    "caches",
    "files",
    "records",
    "namespaces",
    "texts",
    "clients",
    "connections",
    "fields",
)
