"""Rows: what cells store in every layer, how rows are read, rotated and moved, and batches of cells."""
