"""How states of the cache are written: one file per format."""
