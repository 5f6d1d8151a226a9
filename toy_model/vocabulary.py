"""The toy tokenizer: byte-level BPE over common English words, with the real special tokens.

tokenizer.json is written by hand, so that its bytes do not depend on a library's version.
"""

from typing import Any

_COLOURS = "red orange yellow green blue purple pink brown black white grey cyan magenta"
_SHAPES = "circle square triangle rectangle star cross ring line arrow heart diamond dot shape oval hexagon"
_PLACES = (
    "left right top bottom middle center corner above below beside inside outside between behind front "
    "upper lower near far over under first second third last next"
)
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty hundred number digit"
)
_SPOKEN = (
    "yes no up down on off stop go hello hi please thanks okay start end wait listen open close "
    "play turn say said word voice sound tone noise music speech silence bell whistle beep chirp clap"
)
_SCENE = (
    "image picture photo audio clip video background object small large big tiny little long short wide "
    "narrow thick thin bright dark light plain striped filled empty solid round flat high low loud quiet "
    "fast slow rising falling cat dog bird tree house car sun moon sky sea water grass road wall window "
    "door table chair book cup hand face man woman child people text letter color colour size position"
)
_COMMON = (
    "the a an and or but not is are was were be been it its this that these those there here of in at to "
    "from with without by for as if then than so very more most less least some any all both each every "
    "many few other another same different like just only also i you he she we they me my your his her our "
    "their what which who where when why how do does did can could will would should may must have has had "
    "see sees hear hears show shows shown look looks read name tell describe answer question count make "
    "makes find found think know user assistant system about into out again still always never maybe "
    "because while after before now today time day night world work good bad new old true false none"
)
_CAPITALISED = (
    "the a an it this that there here i you we they what which who where when how is are do does can "
    "yes no hello please describe say name count tell look listen in on left right red green blue "
    "yellow black white one two three four five zero"
)
_PIECES = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me "
    "de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ing ion ent and tio for ate all ter her ver "
    "est con pro com ess ment"
)
_STACKED = ("\n\n", "  ", "    ", "...", '":', '",', '{"', '"}')

SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<unk> <image> </image> <ref> </ref> <box> </box> <quad> </quad> <point> </point> <slice> </slice> "
    "<image_id> </image_id> <unit> </unit> <answer> </answer> <focus> </focus> <line> </line> "
    "<perception> </perception> <source_image> </source_image> <image_save_to> </image_save_to> "
    "<|audio_start|> <|audio|> <|audio_end|> <|spk_bos|> <|spk|> <|spk_eos|> <|tts_bos|> <|tts_eos|> "
    "<|listen|> <|speak|> <|interrupt|> <|vad_start|> <|vad_end|> <|emotion_start|> <|emotion_end|> "
    "<|speed_start|> <|speed_end|> <|pitch_start|> <|pitch_end|> <|turn_bos|> <|turn_eos|> <|chunk_eos|> "
    "<|chunk_bos|> <|chunk_tts_bos|> <|chunk_tts_eos|> <|tts_pad|>"
).split() + [f"<|timbre_{number}|>" for number in range(7, 32)]
# Whole tokens that stay in decoded text, as in the real tokenizer.
VISIBLE = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def spell(text: str) -> str:
    """The text in byte symbols."""
    symbols = byte_symbols()
    return "".join(symbols[byte] for byte in text.encode())


def answer_words() -> list[str]:
    """The words, each with the space before it, that answers are made of."""
    groups = (_COLOURS, _SHAPES, _PLACES, _NUMBERS, _SPOKEN, _SCENE, _COMMON)
    return [f" {word}" for word in dict.fromkeys(" ".join(groups).split())]


def vocabulary() -> dict[str, int]:
    """Every token and its id: bytes, pieces, words, then the special tokens."""
    spaced = answer_words()
    bare = [word[1:] for word in spaced]
    capital = [word.capitalize() for word in _CAPITALISED.split()]
    texts = [*_PIECES.split(), *_STACKED, *spaced, *bare, *capital, *(f" {word}" for word in capital)]
    tokens = [*byte_symbols(), *(spell(text) for text in texts), *SPECIAL, *VISIBLE]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def _merges(vocab: dict[str, int]) -> list[list[str]]:
    """How pieces are joined; whole words need no merges, because they are looked up first."""
    merges = []
    for piece in _PIECES.split():
        left = max((n for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab), default=0)
        if left:
            merges.append([piece[:left], piece[left:]])
    return merges


def tokenizer_json() -> dict[str, Any]:
    """What tokenizer.json holds."""
    vocab = vocabulary()
    added = [
        {
            "id": vocab[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token in SPECIAL,
        }
        for token in (*SPECIAL, *VISIBLE)
    ]
    plain = {token: number for token, number in vocab.items() if number < vocab[SPECIAL[0]]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": plain,
            "merges": _merges(vocab),
        },
    }


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """What tokenizer_config.json holds."""
    return {
        "tokenizer_class": "MiniCPMOTokenizerFast",
        "auto_map": {"AutoTokenizer": [None, "tokenization_minicpmo.MiniCPMOTokenizerFast"]},
        "add_prefix_space": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "split_special_tokens": False,
    }
