"""Cells: positions and owners, which batches are legal, how they are cut, and where their tokens will go.

The bookkeeping itself is native: :class:`aleator.cache.Cells`.
"""
