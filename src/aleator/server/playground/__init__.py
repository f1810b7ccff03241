"""The playground: a page that shows and changes every draw, and its endpoints (docs/playground.md)."""
