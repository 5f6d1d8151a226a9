"""Tokenizer class of the toy checkpoint: tokenizer.json as it is, and names for the marker tokens."""

from transformers import PreTrainedTokenizerFast

MARKERS = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
    "audio_start": "<|audio_start|>",
    "audio_end": "<|audio_end|>",
    "spk_start": "<|spk_bos|>",
    "spk_end": "<|spk_eos|>",
    "tts_start": "<|tts_bos|>",
    "tts_end": "<|tts_eos|>",
}


class MiniCPMOTokenizerFast(PreTrainedTokenizerFast):
    """Each marker is an attribute (`im_start`), and so is its id (`im_start_id`).

    It has no constructor: with one, transformers 5 would rebuild the tokenizer from the vocabulary
    alone and lose tokenizer.json's splitting and decoding.
    """

    bos_id = property(lambda self: self.bos_token_id)
    eos_id = property(lambda self: self.eos_token_id)
    unk_id = property(lambda self: self.unk_token_id)


def _id_of(token: str) -> property:
    return property(lambda self: self.convert_tokens_to_ids(token))


for _name, _token in MARKERS.items():
    setattr(MiniCPMOTokenizerFast, _name, _token)
    setattr(MiniCPMOTokenizerFast, f"{_name}_id", _id_of(_token))
