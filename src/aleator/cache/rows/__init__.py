"""Rows: what cells store in every layer, how it is read, rotated and moved, and batches of cells."""
