"""The base of all other packages: errors, parameter declarations, random numbers."""
