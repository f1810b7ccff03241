"""What the tokens of an output must obey: GBNF, and engines of other packages behind one interface."""
