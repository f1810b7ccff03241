"""Safetensors to GGUF, and types of weights to others: ``aleator convert``, ``aleator quantize``."""
