"""Handles on sequences: what people do with a text, exact or refused."""
