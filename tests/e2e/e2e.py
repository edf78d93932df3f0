# SPDX-License-Identifier: Apache-2.0
#
# What Quire's encodings do to a model's predictions: SmolLM2-135M over a real text, its keys
# and values through a running server, against its own FP16 run. Prints one table; --check
# fails when a figure is not what it should be.
"""usage: e2e.py [--tokens N] [--rows TEXT,...] [--policy FILE]... [--check] |
       e2e.py --dump FILE [--layers N,...] [--skip N] [--tokens N]"""
import argparse
import json
import os
import struct
import sys
import time

import numpy as np

import smollm2
from library import POST, PRE, Library, Server, Session, SessionCache

SCORED_FROM = 256  # positions before see little but the first page
GENERATED = 64
# Name, keys, values, how keys are stored, sinks, outliers; the KL that an independent numpy reference got as
# served (None: it has no such row), as the issue of this report lists them.
ROWS = [
    ("raw", "raw", "raw", PRE, 0, 0, None),
    ("KIVI-4 as published", "chan:bits=4", "chan:bits=4", POST, 0, 0, 0.0088),
    ("chan K4/V4", "chan:bits=4", "chan:bits=4", PRE, 4, 0, 0.0017),
    ("chan K4/V4, 4 outlier rows (default)", "chan:bits=4", "chan:bits=4", PRE, 4, 4, None),
    ("chan K3/V3", "chan:bits=3", "chan:bits=3", PRE, 4, 0, 0.0097),
    ("chan K3 G128, V3 G64", "chan:bits=3,group=128", "chan:bits=3,group=64", PRE, 4, 0, 0.0207),
    ("K3 chan G128 + V3 lm", "chan:bits=3,group=128", "lm:bits=3", PRE, 4, 0, 0.0195),
    ("KIVI-2 as published", "chan:bits=2", "chan:bits=2", POST, 0, 0, 0.335),
    ("chan K2/V2", "chan:bits=2", "chan:bits=2", PRE, 4, 0, 0.103),
    ("K3 chan G128 + V2 lm", "chan:bits=3,group=128", "lm:bits=2", PRE, 4, 0, 0.032),
    ("lm K2/V2, key mean off", "lm:bits=2,center", "lm:bits=2", PRE, 4, 0, 0.076),
]
KL_TOLERANCE = 0.15


def read_ids(path, tokens):
    """token_ids of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])["token_ids"]["data_offsets"]
    return np.frombuffer(data[8 + length + begin:8 + length + end], "<i4")[:tokens]


class Judge:
    """Log-probabilities of the FP16 run, and what others differ by."""

    def __init__(self, model, ids):
        self.model, self.ids = model, ids
        self.hidden = model.run(ids, smollm2.Fp16Cache())
        self.base = self.measure(self.hidden)

    def measure(self, hidden, block=128):
        """Over positions SCORED_FROM on: KL from the FP16 run, top-1 agreement, perplexity."""
        kl, same, loss, count, targets = 0.0, 0, 0.0, 0, 0
        for first in range(SCORED_FROM, len(self.ids), block):
            at = slice(first, min(first + block, len(self.ids)))
            p = smollm2.log_softmax(self.model.logits(self.hidden[at]))
            q = smollm2.log_softmax(self.model.logits(hidden[at]))
            kl += float((np.exp(p) * (p - q)).sum())
            same += int((p.argmax(-1) == q.argmax(-1)).sum())
            count += len(p)
            following = self.ids[first + 1:at.stop + 1]
            loss -= float(q[np.arange(len(following)), following].sum())
            targets += len(following)
        return {"kl": kl / count, "top1": same / count, "perplexity": float(np.exp(loss / targets))}


def bits_of(info):
    """Bits an element of what is sealed, headers and digests too."""
    elements = 2 * smollm2.LAYERS * smollm2.KV_HEADS * smollm2.DIM
    sealed = info.pages // smollm2.LAYERS * info.policy.page_tokens
    return 8 * info.page_bytes / (elements * sealed) if sealed else float("nan")


def pass_through(judge, server, row, served):
    """One run of the model with its cache in the server."""
    _, key, value, stored, sinks, outliers, _ = row[:7]
    policy = {"key": key, "value": value, "sink_rows": sinks, "outlier_rows": outliers, "window": 128 if served else 0,
              "overrides": row[7] if len(row) > 7 else []}
    session = Session(server, f"e2e-{os.getpid()}", policy, stored)
    try:
        found = judge.measure(judge.model.run(judge.ids, SessionCache(session, served)))
        found["bits"] = bits_of(session.info())
        found["perplexity_ratio"] = found["perplexity"] / judge.base["perplexity"]
        return found
    finally:
        session.drop()


def table(judge, server, rows):
    """[(row, as served, all quantized)]; rows whose codec the library does not know are named and left out."""
    out = []
    head = f"{'policy':38} {'bits':>6} | {'KL served':>9} {'wanted':>7} {'ppl x':>7} {'top-1':>6} | {'KL all':>8} {'ppl x':>7} {'top-1':>6}"
    print(head + "\n" + "-" * len(head))
    for row in rows:
        try:
            served, every = (pass_through(judge, server, row, way) for way in (True, False))
        except RuntimeError as error:
            print(f"{row[0]:38} left out: {error}", flush=True)
            continue
        wanted = f"{row[6]:7.4f}" if row[6] else "      -"
        print(f"{row[0]:38} {every['bits']:6.2f} | {served['kl']:9.2e} {wanted} {served['perplexity_ratio']:7.4f} "
              f"{served['top1']:6.3f} | {every['kl']:8.2e} {every['perplexity_ratio']:7.4f} {every['top1']:6.3f}", flush=True)
        out.append((row, served, every))
    return out


def policy_row(path):
    """A row of the table from a policy file."""
    with open(path, encoding="utf-8") as file:
        policy = json.load(file)
    return (os.path.basename(path), policy.get("key", "chan"), policy.get("value", "chan"), PRE,
            policy.get("sink_rows", 4), policy.get("outlier_rows", 4), None, policy.get("overrides", []))


def generate(model, ids, first, cache, count):
    """Greedy: `count` tokens after `ids`, of which those before `first` are in the cache already."""
    tokens = list(ids)
    while len(tokens) < len(ids) + count:
        hidden = model.block(np.array(tokens[first:]), first, cache)
        first = len(tokens)
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
    return tokens[len(ids):]


def restored_generation(model, server, ids):
    """A session of raw pages, closed and opened again, goes on as if nothing had been. Keys are rotated by the same
    arithmetic in both runs: fetched with RoPE they differ by 2^-20, and after 52 tokens greedy meets a tie of that."""
    whole = smollm2.Fp16Cache()
    model.run(ids[:-1], whole)
    wanted = generate(model, ids, len(ids) - 1, whole, GENERATED)
    name = f"e2e-restored-{os.getpid()}"
    session = Session(server, name, {"key": "raw", "value": "raw"}, PRE)
    model.run(ids[:-1], SessionCache(session, False, rotate_here=True))
    session.close()
    session = Session(server, name)
    try:
        got = generate(model, ids, len(ids) - 1, SessionCache(session, False, rotate_here=True), GENERATED)
    finally:
        session.drop()
    return wanted, got


def check_llama(judge, path):
    """The largest and the mean KL of a file's llama.cpp log-probabilities from the FP16 run: see llama_logits.py."""
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)
    kls, same = [], 0
    for entry in wanted["positions"]:
        p = smollm2.log_softmax(judge.model.logits(judge.hidden[entry["position"]][None]))[0].astype(np.float64)
        top, q = np.array(entry["tokens"]), np.array(entry["log_probabilities"])
        rest_p, rest_q = max(1e-12, 1 - np.exp(p[top]).sum()), max(1e-12, 1 - np.exp(q).sum())
        kls.append(float((np.exp(q) * (q - p[top])).sum() + rest_q * np.log(rest_q / rest_p)))
        same += int(p.argmax() == top[0])
    return max(kls), sum(kls) / len(kls), same / len(kls)


def dump(model, ids, path, layers):
    """Keys, values, queries of some layers as a file for `quire eval` and `quire tune`."""
    blocks = []
    model.run(ids, smollm2.Fp16Cache(), dump=blocks)
    tensors = {"token_ids": ids.astype("<i4")}
    for layer in layers:
        for i, kind in enumerate("qkv"):
            tensors[f"{kind}_layer{layer:02}"] = np.concatenate([block[layer][i] for block in blocks])
    header, at = {}, 0
    for name, t in tensors.items():
        kind = "I32" if t.dtype == np.int32 else "F16"
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values()))


def verdicts(judge, rows, generated, llama):
    """[(what, whether it holds)]"""
    out = []
    for row, served, _ in rows:
        if row[0] == "raw":
            out.append((f"raw pages: KL {served['kl']:.1e} is that of rounding, at most 1e-6", served["kl"] <= 1e-6))
        if row[6]:
            off = served["kl"] / row[6] - 1
            out.append((f"{row[0]}: KL as served {served['kl']:.5f} is {100 * off:+.0f} % from {row[6]}; at most "
                        f"{100 * KL_TOLERANCE:.0f} % expected", abs(off) <= KL_TOLERANCE or off < 0))
    wanted, got = generated
    same = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), len(wanted))
    out.append((f"{GENERATED} tokens greedy from a restored session of raw pages: {same} the same", wanted == got))
    if llama:
        out.append((f"FP16 run against llama.cpp: KL at most {llama[0]:.4f}, mean {llama[1]:.4f}, top-1 {llama[2]:.3f}; "
                    "0.02 and 0.95 expected", llama[1] <= 0.02 and llama[2] >= 0.95))
    return out


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1536)
    parser.add_argument("--skip", type=int, default=0, help="leave out the text's first N tokens")
    parser.add_argument("--rows", default="", help="only rows whose name holds one of these, comma separated")
    parser.add_argument("--policy", action="append", default=[], help="a policy file, as one more row; may be repeated")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--dump")
    parser.add_argument("--layers", default=",".join(str(i) for i in range(smollm2.LAYERS)))
    parser.add_argument("--llama", default=os.path.join(here, "llama_logits.json"))
    options = parser.parse_args()
    data = os.environ.get("QUIRE_DATA", os.path.join(os.environ["QUIRE_SOURCE"], "tests/data"))
    ids = read_ids(os.path.join(data, "constitution_ids.safetensors"), options.skip + options.tokens)[options.skip:]
    model = smollm2.Model()
    if options.dump:
        dump(model, ids, options.dump, [int(n) for n in options.layers.split(",")])
        return 0
    start = time.monotonic()
    judge = Judge(model, ids)
    print(f"SmolLM2-135M, {len(ids)} tokens, FP16 perplexity {judge.base['perplexity']:.3f} from position {SCORED_FROM} on")
    words = [w for w in options.rows.split(",") if w]
    rows = [row for row in ROWS if not words or any(w in row[0] for w in words)] + [
        policy_row(path) for path in options.policy]
    library = Library()
    server = Server(library)
    try:
        found = table(judge, server, rows)
        generated = restored_generation(model, server, ids[:384])
    finally:
        server.stop()
    llama = check_llama(judge, options.llama) if os.path.exists(options.llama) else None
    failed = 0
    for text, holds in verdicts(judge, found, generated, llama):
        print(("ok   " if holds else "FAIL ") + text)
        failed += not holds
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if failed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
