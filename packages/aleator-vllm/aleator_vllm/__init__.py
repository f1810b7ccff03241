"""Aleator's logits processor, under the name that vLLM finds it by."""

from aleator.integrations.vllm import AleatorLogitsProcessor as AleatorLogitsProcessor
