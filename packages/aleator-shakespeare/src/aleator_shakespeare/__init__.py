"""The model that comes with Aleator: shakespeare.gguf and its draft head lie in this folder."""
