"""qwen35: the text part of Qwen3.5, gated delta nets, and gated attention in every fourth layer.

Pictures are left out.  For text every axis of the interleaved M-RoPE has the same position, so part of a head's
channels is rotated as usual.  llama.cpp cannot shift positions of these models; a shift is refused here.
llama.cpp's states keep further positions of each cell and are not read here.
"""

from aleator.models.architectures.delta_net_files import qwen35

QWEN35 = qwen35("qwen35", ("qwen3_5", "qwen3_5_text"), experts=False)
