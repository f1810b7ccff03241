"""The playground: a page that shows, changes and compares every draw, and its endpoints (docs/playground.md)."""
