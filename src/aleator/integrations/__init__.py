"""Adapters for other packages, a module for each; docs/integrations.md says which versions they ran with."""
