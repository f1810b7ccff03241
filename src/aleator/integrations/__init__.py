"""Adapters for other packages, one module each; docs/integrations.md lists the versions they ran with."""
