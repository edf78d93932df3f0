# SPDX-License-Identifier: Apache-2.0
#
# Writes llama_logits.json: what llama.cpp predicts on the same text with the same file, as a
# witness for smollm2.py. Needs the PyPI package llama-cpp-python, which compiles for a while;
# e2e.py only reads the file.
"""usage: llama_logits.py IDS.safetensors OUT.json"""
import json
import sys

import numpy as np
from llama_cpp import Llama

import smollm2
from e2e import read_ids

TOKENS, EVERY, TOP = 1536, 64, 64


def main():
    ids = read_ids(sys.argv[1], TOKENS)
    llama = Llama(smollm2.model_path(), n_ctx=TOKENS, n_batch=512, logits_all=True, verbose=False)
    llama.eval([int(i) for i in ids])
    entries = []
    for position in range(EVERY - 1, TOKENS, EVERY):
        log = smollm2.log_softmax(np.array(llama.scores[position], np.float64))
        top = np.argsort(-log)[:TOP]
        entries.append({"position": position, "tokens": [int(t) for t in top],
                        "log_probabilities": [round(float(log[t]), 5) for t in top]})
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"tokens": TOKENS, "positions": entries}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
