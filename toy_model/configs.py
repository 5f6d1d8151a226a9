"""Sizes of the toy model and the JSON files that state them, under the real checkpoint's keys."""

from typing import Any

from toy_model.vocabulary import vocabulary

# The resampler has hidden_size // 128 attention heads, so the hidden size is a multiple of 128.
HIDDEN = 256
INTERMEDIATE = 512
LAYERS = 3
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
MAX_LENGTH = 8192

VISION_HIDDEN = 128
VISION_INTERMEDIATE = 256
VISION_LAYERS = 2
VISION_HEADS = 4
PATCH = 14
SLICE_SIDE = 140  # the real model: 448
POSITIONS_SIDE = 20  # the real model: 70
QUERIES = 64

AUDIO_HIDDEN = 128
AUDIO_INTERMEDIATE = 4 * AUDIO_HIDDEN  # the projection takes a quarter of it as its input width
AUDIO_LAYERS = 2
AUDIO_HEADS = 4
MEL_BINS = 80
AUDIO_POSITIONS = 1500
POOL_STEP = 5

CODE_FILES = (
    "configuration_minicpmo.py",
    "image_processing_minicpmo.py",
    "processing_minicpmo.py",
    "tokenization_minicpmo.py",
)


def decoder_sizes() -> dict[str, Any]:
    """The keys that say how large the decoder is, for every checkpoint of the Qwen kind."""
    return {
        "vocab_size": len(vocabulary()),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
    }


def model_config() -> dict[str, Any]:
    """What config.json holds."""
    ids = vocabulary()
    return {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
        "version": "4.5",
        "auto_map": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
        **decoder_sizes(),
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "max_position_embeddings": MAX_LENGTH,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "dtype": "float32",
        "use_cache": True,
        "query_num": QUERIES,
        "image_size": SLICE_SIDE,
        "drop_vision_last_layer": False,
        "batch_vision_input": True,
        "vision_batch_size": 16,
        "use_image_id": True,
        "slice_mode": True,
        "slice_config": {
            "model_type": "minicpmv",
            "patch_size": PATCH,
            "max_slice_nums": 9,
            "scale_resolution": SLICE_SIDE,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_INTERMEDIATE,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": VISION_HEADS,
            "image_size": POSITIONS_SIDE * PATCH,
            "patch_size": PATCH,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
        "audio_config": {
            "model_type": "whisper",
            "d_model": AUDIO_HIDDEN,
            "encoder_layers": AUDIO_LAYERS,
            "encoder_attention_heads": AUDIO_HEADS,
            "encoder_ffn_dim": AUDIO_INTERMEDIATE,
            "decoder_layers": 1,
            "decoder_attention_heads": AUDIO_HEADS,
            "decoder_ffn_dim": AUDIO_INTERMEDIATE,
            "num_mel_bins": MEL_BINS,
            "max_source_positions": AUDIO_POSITIONS,
            "activation_function": "gelu",
        },
        "audio_pool_step": POOL_STEP,
        "audio_chunk_length": 1.0,
        "stream_input": False,
        "init_vision": True,
        "init_audio": True,
        "init_tts": False,
    }


def preprocessor_config() -> dict[str, Any]:
    """What preprocessor_config.json holds: the image processor's and the feature extractor's keys."""
    return {
        "image_processor_type": "MiniCPMVImageProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "MiniCPMOProcessor",
        "auto_map": {
            "AutoImageProcessor": "image_processing_minicpmo.MiniCPMVImageProcessor",
            "AutoProcessor": "processing_minicpmo.MiniCPMOProcessor",
        },
        "max_slice_nums": 9,
        "scale_resolution": SLICE_SIDE,
        "patch_size": PATCH,
        "use_image_id": True,
        "image_feature_size": QUERIES,
        "slice_mode": True,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "version": 4.5,
        "audio_pool_step": POOL_STEP,
        "feature_size": MEL_BINS,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "return_attention_mask": True,
    }


def generation_config() -> dict[str, Any]:
    """What generation_config.json holds: the real model's sampling defaults."""
    ids = vocabulary()
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
