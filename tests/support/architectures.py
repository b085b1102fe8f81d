"""Architectures of `transformers` to train, from small configs with random weights.

Each builder returns a model in training mode and a function from a batch size to keyword arguments. Losses are the
models' own where they have one, else the mean square of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.support.transformer_sizes import GPT2, ROTARY, SMALL, T5, VIT, VOCABULARY, WHISPER

Built = tuple[torch.nn.Module, Callable[[int], dict[str, Any]]]


def tokens(batch: int, length: int = 8) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _language(batch: int) -> dict[str, Any]:
    ids = tokens(batch)
    return {"input_ids": ids, "labels": ids}


def _padded(batch: int) -> dict[str, Any]:
    mask = torch.ones(batch, 8, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": tokens(batch), "attention_mask": mask}


def _translation(batch: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch), "labels": tokens(batch, 6)}


def _image(batch: int, size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 5, (batch,))}


def _built(model: str, config: str, inputs: Callable[[int], dict[str, Any]], **settings: Any) -> Built:
    made = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return made.train(), inputs


def _of(
    model: str, config: str, inputs: Callable[[int], dict[str, Any]], **settings: Any
) -> Callable[[], Built]:
    return functools.partial(_built, model, config, inputs, **settings)


def _whisper_inputs(batch: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 8, 60), "labels": tokens(batch, 6)}


def _speech(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 400)}


def _clip_inputs(batch: int) -> dict[str, Any]:
    ids = tokens(batch)
    ids[:, -1] = VOCABULARY - 1
    return {"input_ids": ids, "pixel_values": torch.randn(batch, 3, 32, 32), "return_loss": True}


ARCHITECTURES: dict[str, Callable[[], Built]] = {
    "bert": _of("BertModel", "BertConfig", _padded, **SMALL),
    "gpt2": _of(
        "GPT2LMHeadModel",
        "GPT2Config",
        _language,
        **GPT2,
    ),
    "llama": _of("LlamaForCausalLM", "LlamaConfig", _language, **ROTARY),
    "t5": _of(
        "T5ForConditionalGeneration",
        "T5Config",
        _translation,
        **T5,
    ),
    "distilbert": _of(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        _language,
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=37,
    ),
    "vit": _of(
        "ViTForImageClassification",
        "ViTConfig",
        _image,
        **VIT,
    ),
    "whisper": _of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _whisper_inputs,
        **WHISPER,
    ),
    "mamba": _of(
        "MambaForCausalLM",
        "MambaConfig",
        _language,
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
    ),
    "electra": _of("ElectraForMaskedLM", "ElectraConfig", _language, embedding_size=16, **SMALL),
    "opt": _of(
        "OPTForCausalLM",
        "OPTConfig",
        _language,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=37,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "gpt_neox": _of("GPTNeoXForCausalLM", "GPTNeoXConfig", _language, **SMALL),
    "mpnet": _of("MPNetForMaskedLM", "MPNetConfig", _language, **SMALL),
    "roberta": _of("RobertaForMaskedLM", "RobertaConfig", _language, **SMALL),
    "albert": _of("AlbertForMaskedLM", "AlbertConfig", _language, embedding_size=16, **SMALL),
    "deberta_v2": _of(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        _language,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **SMALL,
    ),
    "bart": _of(
        "BartForConditionalGeneration",
        "BartConfig",
        _translation,
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        max_position_embeddings=64,
    ),
    "bloom": _of(
        "BloomForCausalLM",
        "BloomConfig",
        _language,
        vocab_size=VOCABULARY,
        hidden_size=32,
        n_layer=2,
        n_head=4,
    ),
    "mistral": _of("MistralForCausalLM", "MistralConfig", _language, **ROTARY),
    "qwen2": _of("Qwen2ForCausalLM", "Qwen2Config", _language, **ROTARY),
    "gemma": _of("GemmaForCausalLM", "GemmaConfig", _language, head_dim=8, **ROTARY),
    "phi": _of("PhiForCausalLM", "PhiConfig", _language, **ROTARY),
    "falcon": _of("FalconForCausalLM", "FalconConfig", _language, **SMALL),
    "xlnet": _of(
        "XLNetLMHeadModel",
        "XLNetConfig",
        _language,
        vocab_size=VOCABULARY,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=37,
    ),
    "resnet": _of(
        "ResNetForImageClassification",
        "ResNetConfig",
        _image,
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_labels=5,
    ),
    "mobilenet_v2": _of(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        _image,
        depth_multiplier=0.25,
        num_labels=5,
        image_size=32,
    ),
    "convnext": _of(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        _image,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_stages=2,
        num_labels=5,
    ),
    "swin": _of(
        "SwinForImageClassification",
        "SwinConfig",
        _image,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        num_labels=5,
    ),
    "clip": lambda: (
        transformers.CLIPModel(
            transformers.CLIPConfig(
                text_config={**SMALL, "eos_token_id": VOCABULARY - 1, "projection_dim": 16},
                vision_config={
                    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
                    "image_size": 32,
                    "patch_size": 8,
                    "projection_dim": 16,
                },
                projection_dim=16,
            )
        ).train(),
        _clip_inputs,
    ),
    "wav2vec2": _of(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        _speech,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        layerdrop=0.0,
        **SMALL,
    ),
}
