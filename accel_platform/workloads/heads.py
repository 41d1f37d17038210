"""Heads for generation and training: the transformers classes that add them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from accel_platform.workloads.model_catalog import ModelSpec

Head = Literal[
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMultimodalLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModelForAudioClassification",
]
"""The names of transformers' Auto classes; `AutoModel` is a model without any head."""
_BY_MODALITY: dict[str, tuple[Head, ...]] = {
    # In order of preference, because transformers gives encoders such as BERT a causal head too, and BART's decoder one
    # of its own. A model with a masked head was made to fill gaps, one with a sequence-to-sequence head to answer an
    # input. Models that read images beside text answer to text alone, too.
    "text": (
        "AutoModelForSeq2SeqLM",
        "AutoModelForMaskedLM",
        "AutoModelForCausalLM",
        "AutoModelForMultimodalLM",
    ),
    "vision": ("AutoModelForImageClassification",),
    "audio": ("AutoModelForSpeechSeq2Seq", "AutoModelForAudioClassification"),
}
_GENERATING: tuple[Head, ...] = (
    "AutoModelForCausalLM",
    "AutoModelForMultimodalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
)


def generation_head(spec: ModelSpec) -> Head | None:
    """Return the head that predicts the next token; None for other models. Imports torch."""
    head = training_head(spec)
    return head if head in _GENERATING else None


def training_head(spec: ModelSpec) -> Head:
    """Return the head whose labels give a loss; `AutoModel` where there is none. Imports torch."""
    from transformers.models.auto import modeling_auto as auto

    known: dict[Head, Mapping[str, object]] = {
        "AutoModelForSeq2SeqLM": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "AutoModelForMaskedLM": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "AutoModelForCausalLM": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "AutoModelForMultimodalLM": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        "AutoModelForSpeechSeq2Seq": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        "AutoModelForImageClassification": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        "AutoModelForAudioClassification": auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    }
    # The causal model that transformers has for MusicGen is the decoder alone, without the text that it reads.
    fitting = () if spec.architecture == "musicgen" else _BY_MODALITY.get(spec.modality, ())
    return next((head for head in fitting if spec.architecture in known[head]), "AutoModel")
