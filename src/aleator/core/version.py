"""The version of the package, as in pyproject.toml."""

__version__ = "0.1.0"
