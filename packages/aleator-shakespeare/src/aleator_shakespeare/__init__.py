"""The model that comes with Aleator: shakespeare.gguf lies in this folder."""
