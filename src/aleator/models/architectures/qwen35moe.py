"""qwen35moe: qwen35 with mixtures of experts in all layers.

A shared expert with its own router takes every token.
"""

from aleator.models.architectures.delta_net_files import qwen35

QWEN35MOE = qwen35("qwen35moe", ("qwen3_5_moe", "qwen3_5_moe_text"), experts=True)
