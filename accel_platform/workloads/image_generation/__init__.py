"""Models that draw images or videos: text encoders, a denoiser that runs step by step, and a decoder of its result.

One pass makes a batch of images from noise and the tokens of prompts. Denoisers and decoders are those of diffusers,
text encoders those of transformers, which builds, saves and loads the whole once it is registered here. Each family has
a module; the defaults of its config are the figures of the published parts. Add a family here, to `IMAGE_GENERATORS`
and to `sets.toml`.
"""

from transformers import AutoConfig, AutoModel

from accel_platform.workloads.image_generation.flux import Flux, Flux2
from accel_platform.workloads.image_generation.pixart import PixArtSigma
from accel_platform.workloads.image_generation.qwen_image import QwenImage
from accel_platform.workloads.image_generation.sana import Sana
from accel_platform.workloads.image_generation.stable_diffusion import (
    StableDiffusion,
    StableDiffusion3,
    StableDiffusionXL,
)
from accel_platform.workloads.image_generation.video import CogVideoX, HunyuanVideo, LTXVideo, Wan
from accel_platform.workloads.image_generation.z_image import ZImage

for _model in (
    StableDiffusion, StableDiffusionXL, StableDiffusion3, Flux, Flux2, PixArtSigma, QwenImage, Sana, ZImage,
    CogVideoX, HunyuanVideo, LTXVideo, Wan,
):  # fmt: skip
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModel.register(_model.config_class, _model)
