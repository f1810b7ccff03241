"""State as bytes, one file per format."""
