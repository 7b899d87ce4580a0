"""Encoding by the definitions, slow and plain: what ids kveval must give a few texts."""

import re

from tiny.tokenizers import (BYTE, GPT2_PATTERN, LLAMA3_PATTERN, MARK, NORMAL, QWEN2_PATTERN, USER_DEFINED,
                             byte_alphabet)

TEXTS = ["The keeper wrote 1234 lines.\n\nWhat's  that,  he'd   asked?\n", "   and", " the lamp \t", "lamp",
         "\u00e9t\u00e9 \u65e5\u672c \x01", "He SAID: it'll rain (at 7:30)...  \n \n", "<s> </s><|im_end|>"]
PATTERNS = {"gpt-2": [GPT2_PATTERN], "smollm": [r"\p{N}", GPT2_PATTERN], "llama-bpe": [LLAMA3_PATTERN],
            "qwen2": [QWEN2_PATTERN]}  # each cuts what the one before has left
NEVER = float("inf")


def in_python(pattern):
    """Python's expressions have no classes for letters and numbers: as much of Unicode as the texts have."""
    letters, numbers = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u4e00-\u9fff", "0-9"
    pattern = pattern.replace(r"\p{L}\p{N}]", f"{letters}{numbers}]")  # in brackets they come as a pair
    return pattern.replace(r"\p{L}", f"[{letters}]").replace(r"\p{N}", f"[{numbers}]")


def merge_all(symbols, rank_of):
    """The best pair, the leftmost of equals, until none is left. `rank_of` gives NEVER for no pair."""
    symbols = list(symbols)
    while len(symbols) > 1:
        ranks = [rank_of(pair) for pair in zip(symbols, symbols[1:])]
        if min(ranks) == NEVER:
            break
        at = ranks.index(min(ranks))
        symbols[at:at + 2] = ["".join(symbols[at:at + 2])]
    return symbols


def encode_byte_level(tokenizer, text):
    words = [text]
    for pattern in PATTERNS[tokenizer.name]:
        words = [part for word in words for part in re.split(f"({in_python(pattern)})", word) if part]
    ids = {piece: id for id, (piece, kind) in enumerate(zip(tokenizer.pieces, tokenizer.kinds)) if kind == NORMAL}
    ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
    alphabet, out = byte_alphabet(), []
    for word in words:
        word = "".join(alphabet[byte] for byte in word.encode())
        whole = tokenizer.name == "llama-bpe" and word in ids
        symbols = [word] if whole else merge_all(word, lambda pair: ranks.get(pair, NEVER))
        out += [ids[symbol] for symbol in symbols]
    return out


def encode_sentencepiece(tokenizer, text):
    text = ((" " if tokenizer.name == "llama" else "") + text).replace(" ", MARK)
    kinds = dict(zip(tokenizer.pieces, tokenizer.kinds))
    ids = {piece: id for id, piece in enumerate(tokenizer.pieces) if kinds[piece] in (NORMAL, USER_DEFINED, BYTE)}
    whole = [re.escape(piece) for piece, kind in kinds.items() if kind == USER_DEFINED]
    parts = re.split(f"({'|'.join(whole)})", text) if whole else [text]

    def rank_of(pair):
        piece = "".join(pair)
        return -tokenizer.scores[ids[piece]] if kinds.get(piece) == NORMAL else NEVER

    out = []
    for part in parts:
        for symbol in [part] if kinds.get(part) == USER_DEFINED else merge_all(part, rank_of):
            out += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return out


def encode(tokenizer, text):
    """No special tokens, neither around the text nor in it. Slow and as the definitions have it."""
    return (encode_sentencepiece if tokenizer.is_sentencepiece else encode_byte_level)(tokenizer, text)
