"""Weights that are quantised in safetensors: GPTQ, AWQ, FP8, MXFP4, nf4, compressed-tensors."""
