"""Small tokenizers of each kind, as GGUF keys and as tokenizer.json. Both give a text the same ids.

A vocabulary has all 256 bytes and pieces merged from the text below, so that it encodes anything and shortens
English. Byte-level ones differ in their pre-tokenizer and in where special tokens stand; SentencePiece ones
in the order of special tokens and in the space before a text.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Optional

from tiny.gguf import ARRAY, BOOL, F32, I32, TEXT, U32

TRAINING_TEXT = """
A lighthouse keeper writes down the weather every evening: the wind, the height of the waves, the ships that
passed and the hour when the lamp was lit. In the winter of that year there was one evening without a line.
The keepers who came after him looked for the reason in the other books of the house, and they found that the
lamp had burned as on all the other nights. The wind had torn the page; nothing else was missing.
"""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
MARK = "\u2581"  # SentencePiece's space

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
          "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass
class Tokenizer:
    name: str  # what makes it different: "llama", "gemma", or a byte-level pre-tokenizer
    pieces: list
    kinds: list
    bos: int
    eos: int
    unknown: Optional[int] = None
    pad: Optional[int] = None
    scores: list = field(default_factory=list)  # SentencePiece
    merges: list = field(default_factory=list)  # byte-level: (left, right), first merged first
    add_bos: bool = False
    chat_template: Optional[str] = None

    @property
    def is_sentencepiece(self):
        return bool(self.scores)


def learn_merges(words, count):
    """The commonest pair becomes a piece, over and over; the smallest of equals, and no piece twice."""
    words = Counter(tuple(word) for word in words)
    merges, products = [], set()
    while len(merges) < count:
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        left, right = min((pair for pair in pairs if "".join(pair) not in products),
                          key=lambda pair: (-pairs[pair], pair))
        merges.append((left, right))
        products.add(left + right)
        words = Counter({merged(word, left, right): times for word, times in words.items()})
    return merges


def merged(word, left, right):
    out = []
    for symbol in word:
        if out and out[-1] == left and symbol == right:
            out[-1] = left + right
        else:
            out.append(symbol)
    return tuple(out)


# ------------------------------------------------------------------------------------------------ byte-level


def byte_alphabet():
    """GPT-2's: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level(name, specials, specials_first, bos, eos, pad=None, add_bos=False, chat_template=None):
    alphabet = byte_alphabet()
    words = ["".join(alphabet[byte] for byte in word.encode()) for word in re.findall(r" ?\w+|\s+|[^\w\s]+",
                                                                                     TRAINING_TEXT)]
    merges = learn_merges(words, 96)
    normal = sorted(alphabet) + [left + right for left, right in merges]
    pieces = specials + normal if specials_first else normal + specials
    kinds = [CONTROL if piece in specials else NORMAL for piece in pieces]
    return Tokenizer(name, pieces, kinds, pieces.index(bos), pieces.index(eos),
                     pad=pieces.index(pad) if pad else None, merges=merges, add_bos=add_bos,
                     chat_template=chat_template)


# --------------------------------------------------------------------------------------------- SentencePiece


def sentencepiece(name, specials, bos, eos, unknown, pad=None):
    """`specials`: (piece, kind), before all others. Merged pieces come first, by score, single ones last."""
    words = [MARK + word for word in re.findall(r"\w+|[^\w\s]+", TRAINING_TEXT)]
    products = [left + right for left, right in learn_merges(words, 64)]
    singles = sorted({character for word in words for character in word})
    normal = products + singles
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [piece for piece, _ in specials] + byte_pieces + normal
    kinds = [kind for _, kind in specials] + [BYTE] * 256 + [NORMAL] * len(normal)
    scores = [0.0] * (len(specials) + 256) + [-float(rank) for rank in range(len(normal))]
    return Tokenizer(name, pieces, kinds, pieces.index(bos), pieces.index(eos), unknown=pieces.index(unknown),
                     pad=pieces.index(pad) if pad else None, scores=scores, add_bos=True)


def all_splits(tokenizer):
    """A conversion writes each way to make a normal piece of two pieces as a merge, in the order of pieces."""
    ids = {piece: id for id, piece in enumerate(tokenizer.pieces)}
    merges = []
    for piece, kind in zip(tokenizer.pieces, tokenizer.kinds):
        if kind != NORMAL:
            continue
        ways = [(piece[:at], piece[at:]) for at in range(1, len(piece))
                if piece[:at] in ids and piece[at:] in ids]
        merges += sorted(ways, key=lambda way: (ids[way[0]], ids[way[1]]))
    return merges


def make_tokenizers():
    chatml = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {tokenizer.name: tokenizer for tokenizer in (
        sentencepiece("llama", [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)],
                      bos="<s>", eos="</s>", unknown="<unk>"),
        sentencepiece("gemma", [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", CONTROL),
                                ("<start_of_turn>", CONTROL), ("<end_of_turn>", CONTROL),
                                (MARK * 2, USER_DEFINED), ("\n\n", USER_DEFINED)],
                      bos="<bos>", eos="<eos>", unknown="<unk>", pad="<pad>"),
        byte_level("gpt-2", ["<|endoftext|>"], False, bos="<|endoftext|>", eos="<|endoftext|>"),
        byte_level("smollm", chatml, True, bos="<|im_start|>", eos="<|im_end|>", pad="<|im_end|>",
                   chat_template=CHATML),
        byte_level("llama-bpe", ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], False,
                   bos="<|begin_of_text|>", eos="<|eot_id|>", add_bos=True),
        byte_level("qwen2", chatml, False, bos="<|endoftext|>", eos="<|im_end|>", pad="<|endoftext|>",
                   chat_template=CHATML),
    )}


# ---------------------------------------------------------------------------------------------------- as GGUF


def gguf_keys(tokenizer, size):
    """`size`: rows of the embedding; a converter fills up with unused pieces."""
    more = range(len(tokenizer.pieces), size)
    # Gemma's converter writes runs of spaces as such.
    pieces = [piece.replace(MARK, " ") if kind == USER_DEFINED else piece
              for piece, kind in zip(tokenizer.pieces, tokenizer.kinds)] + [f"[PAD{id}]" for id in more]
    kinds = tokenizer.kinds + [UNUSED for _ in more]
    kind = "llama" if tokenizer.is_sentencepiece else "gpt2"
    keys = [("tokenizer.ggml.model", TEXT, kind),
            ("tokenizer.ggml.pre", TEXT, "default" if tokenizer.is_sentencepiece else tokenizer.name),
            ("tokenizer.ggml.tokens", ARRAY, (TEXT, pieces)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, kinds))]
    if tokenizer.is_sentencepiece:
        keys.append(("tokenizer.ggml.scores", ARRAY, (F32, tokenizer.scores + [-1000.0 for _ in more])))
    else:
        keys.append(("tokenizer.ggml.merges", ARRAY, (TEXT, [" ".join(merge) for merge in tokenizer.merges])))
    for name, id in (("bos", tokenizer.bos), ("eos", tokenizer.eos), ("unknown", tokenizer.unknown),
                     ("padding", tokenizer.pad)):
        if id is not None:
            keys.append((f"tokenizer.ggml.{name}_token_id", U32, id))
    keys += [("tokenizer.ggml.add_bos_token", BOOL, tokenizer.add_bos),
             ("tokenizer.ggml.add_eos_token", BOOL, False)]
    if tokenizer.name == "gemma":
        keys.append(("tokenizer.ggml.add_space_prefix", BOOL, False))
    if tokenizer.chat_template:
        keys.append(("tokenizer.chat_template", TEXT, tokenizer.chat_template))
    return keys


# ------------------------------------------------------------------------------------------ as tokenizer.json


def replace(before, after):
    return {"type": "Replace", "pattern": {"String": before}, "content": after}


def sequence(what, steps):
    return {"type": "Sequence", what: steps}


def byte_level_step(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def pre_tokenizer_of(tokenizer):
    if tokenizer.name == "llama":
        return None
    if tokenizer.name == "gemma":
        return {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if tokenizer.name == "gpt-2":
        return byte_level_step(True)
    if tokenizer.name == "smollm":
        return sequence("pretokenizers", [{"type": "Digits", "individual_digits": True}, byte_level_step(True)])
    pattern = {"llama-bpe": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}[tokenizer.name]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return sequence("pretokenizers", [split, byte_level_step(False)])


def normalizer_of(tokenizer):
    if tokenizer.name == "llama":
        return sequence("normalizers", [{"type": "Prepend", "prepend": MARK}, replace(" ", MARK)])
    if tokenizer.name == "gemma":
        return replace(" ", MARK)
    return {"type": "NFC"} if tokenizer.name == "qwen2" else None


def decoder_of(tokenizer):
    if not tokenizer.is_sentencepiece:
        return byte_level_step(True)
    steps = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if tokenizer.name == "llama":
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return sequence("decoders", steps)


def post_processor_of(tokenizer):
    if not tokenizer.add_bos:
        return None
    piece = tokenizer.pieces[tokenizer.bos]
    bos = {"SpecialToken": {"id": piece, "type_id": 0}}
    first, second = ({"Sequence": {"id": id, "type_id": type_id}} for id, type_id in (("A", 0), ("B", 1)))
    return {"type": "TemplateProcessing", "single": [bos, first], "pair": [bos, first, bos, second],
            "special_tokens": {piece: {"id": piece, "ids": [tokenizer.bos], "tokens": [piece]}}}


def tokenizer_json(tokenizer, merges_as_pairs=True):
    """tokenizers 0.20 and later write merges as pairs, older ones as one text."""
    merges = all_splits(tokenizer) if tokenizer.is_sentencepiece else tokenizer.merges
    added = [{"id": id, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": kind != USER_DEFINED}
             for id, (piece, kind) in enumerate(zip(tokenizer.pieces, tokenizer.kinds))
             if kind in (CONTROL, UNKNOWN, USER_DEFINED)]
    in_model = [(piece, id) for id, (piece, kind) in enumerate(zip(tokenizer.pieces, tokenizer.kinds))
                if tokenizer.is_sentencepiece or kind == NORMAL]
    model = {
        "type": "BPE", "dropout": None,
        "unk_token": tokenizer.pieces[tokenizer.unknown] if tokenizer.is_sentencepiece else None,
        "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": tokenizer.is_sentencepiece, "byte_fallback": tokenizer.is_sentencepiece,
        "ignore_merges": tokenizer.name == "llama-bpe",
        "vocab": dict(in_model),
        "merges": [list(merge) if merges_as_pairs else " ".join(merge) for merge in merges],
    }
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": normalizer_of(tokenizer), "pre_tokenizer": pre_tokenizer_of(tokenizer),
            "post_processor": post_processor_of(tokenizer), "decoder": decoder_of(tokenizer), "model": model}


TOKENIZER_CLASSES = {"llama": "LlamaTokenizer", "gemma": "GemmaTokenizer", "gpt-2": "GPT2Tokenizer",
                     "smollm": "GPT2Tokenizer", "llama-bpe": "PreTrainedTokenizerFast",
                     "qwen2": "Qwen2Tokenizer"}


def tokenizer_config(tokenizer):
    document = {"add_bos_token": tokenizer.add_bos, "add_eos_token": False,
                "bos_token": tokenizer.pieces[tokenizer.bos], "eos_token": tokenizer.pieces[tokenizer.eos],
                "clean_up_tokenization_spaces": False, "model_max_length": 512,
                "tokenizer_class": TOKENIZER_CLASSES[tokenizer.name]}
    if tokenizer.chat_template:
        document["chat_template"] = tokenizer.chat_template
    return document
