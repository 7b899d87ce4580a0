#!/usr/bin/env python3
"""Writes tiny checkpoints of every architecture and tensor type that kveval reads, and what they compute.

  tiny_checkpoints.py OUTPUT_DIR    a folder for each case, and cases.json
  tiny_checkpoints.py --check       no files: the script against itself (tiny/checks.py)

A case's folder has model.gguf, hf/ (a Hugging Face directory), or both with the same weights, and
expected.json: ids and, for each position, all logits of a float64 forward pass over the weights as the files
hold them. Everything follows from seeds. Needs numpy.
"""

import argparse
import json
import sys
from pathlib import Path

from tiny import checks, encoding, gguf, huggingface, tokenizers
from tiny.cases import CASES
from tiny.forward import forward
from tiny.model import make_ids, make_weights

TOKENS = 48
DECIMALS = 9  # of logits: far below float32's error


def scales_of(case):
    """Of an FP8 cache, by layer, and what their tensors are called within a layer."""
    if not case.hf or not case.hf.scales:
        return None
    k = [0.0123 + 0.004 * layer for layer in range(case.config.layers)]
    v = k if case.hf.scales == "shared" else [scale * 3 for scale in k]
    return {"k": k, "v": v, "names": sorted(set(huggingface.SCALE_NAMES[case.hf.scales]))}


def encode_case(case):
    """The tensors of the GGUF file and of the Hugging Face directory; None where there is none."""
    config = case.config
    weights = make_weights(config, case.seed, case.hf.format_of if case.hf else lambda name: "F32")
    of_gguf = gguf.encode_tensors(config, weights, case.gguf.matrices) if case.gguf else None
    of_hf = huggingface.encode_tensors(config, weights, case.hf.format_of) if case.hf else None
    return of_gguf, of_hf


def write_gguf(folder, case, tensors, tokenizer):
    form = case.gguf
    keys = gguf.model_keys(case.config, case.name, form.matrices, form.always_head_dim)
    if form.windows_spelled_out:
        keys += gguf.spelled_out_windows(case.config)
    keys += tokenizers.gguf_keys(tokenizer, case.config.vocabulary)
    return gguf.write(folder, keys, tensors, form.files, form.alignment)


def write_hf(folder, case, tensors, tokenizer, scales):
    form = case.hf
    document = huggingface.model_config(case.config, form.dtype, tokenizer.bos, tokenizer.eos,
                                        form.rope_parameters)
    named = {huggingface.tensor_name(case.config, name): tensor for name, tensor in tensors.items()}
    if scales:
        named |= huggingface.scale_tensors(form.scales, scales["k"], scales["v"])
        if form.scales in huggingface.SCALE_CONFIGS:
            document["quantization_config"] = huggingface.SCALE_CONFIGS[form.scales]
    if form.multimodal:
        document, named = huggingface.multimodal_config(document), huggingface.multimodal_tensors(named)
    files = {"tokenizer.json": tokenizers.tokenizer_json(tokenizer, form.merges_as_pairs),
             "tokenizer_config.json": tokenizers.tokenizer_config(tokenizer)}
    huggingface.write(folder, document, named, files, form.shards)


def logits_of_gguf(case, tensors, ids):
    config, weights = gguf.decode_tensors(case.config, tensors)
    return forward(config, weights, ids, interleaved=gguf.is_interleaved(config))


def logits_of_hf(case, tensors, ids):
    config, weights = huggingface.decode_tensors(case.config, tensors)
    return forward(config, weights, ids)


def write_case(folder, case, tokenizer):
    """Returns the case's entry in cases.json."""
    folder.mkdir(parents=True, exist_ok=True)
    of_gguf, of_hf = encode_case(case)
    ids = make_ids(case.config, case.seed, TOKENS)
    scales = scales_of(case)
    entry = {"name": case.name, "architecture": case.config.architecture, "gguf": None, "hf": None,
             "expected": f"{case.name}/expected.json", "tied": case.config.tied,
             "chat": "chatml" if tokenizer.chat_template else "plain"}
    if of_gguf:
        entry["gguf"] = f"{case.name}/{write_gguf(folder, case, of_gguf, tokenizer)}"
    if of_hf:
        write_hf(folder / "hf", case, of_hf, tokenizer, scales)
        entry["hf"] = f"{case.name}/hf"
    if scales:
        entry["scales"] = scales
    logits = logits_of_hf(case, of_hf, ids) if of_hf else logits_of_gguf(case, of_gguf, ids)
    expected = {"ids": ids.tolist(), "logits": logits.round(DECIMALS).tolist(),
                "texts": [{"text": text, "ids": encoding.encode(tokenizer, text)} for text in encoding.TEXTS]}
    (folder / "expected.json").write_text(json.dumps(expected))
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check == (arguments.output is not None):
        parser.error("give either OUTPUT_DIR or --check")
    if arguments.check:
        return checks.run(CASES, encode_case, logits_of_gguf, logits_of_hf, TOKENS)
    all_tokenizers = tokenizers.make_tokenizers()
    entries = [write_case(arguments.output / case.name, case, all_tokenizers[case.tokenizer]) for case in CASES]
    (arguments.output / "cases.json").write_text(json.dumps(entries, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
