"""Guesses of the tokens that come next, which are decoded together and kept where the chain draws the same."""
