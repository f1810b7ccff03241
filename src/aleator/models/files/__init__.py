"""Formats of model files: GGUF, safetensors and JSON, checked while they are read."""
