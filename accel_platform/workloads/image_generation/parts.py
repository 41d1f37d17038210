"""Parts that several families share, by the fields of their published configs."""

from __future__ import annotations

from typing import Any

CLIP_L = {
    "architectures": ["CLIPTextModel"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
T5_XXL = {
    "architectures": ["T5EncoderModel"],
    "d_model": 4096,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
DECODER: dict[str, Any] = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
}
DECODER_OF_16_CHANNELS = {**DECODER, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
