# SPDX-License-Identifier: Apache-2.0
#
# libquire.so from Python: cffi reads client/quire.h itself, so that structs are what the header
# says today. Sessions of SmolLM2 as a cache of the model. Must not know how tables are made.
"""Library(), Server(), and the caches that pass through a running server."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import cffi
import numpy as np

import smollm2

SOURCE, BINARY = os.environ["QUIRE_SOURCE"], os.environ["QUIRE_BINARY"]
PRE, POST = 1, 2


def declarations():
    """quire.h without directives of the preprocessor, as cffi takes it."""
    with open(os.path.join(SOURCE, "client/quire.h"), encoding="utf-8") as file:
        text = re.sub(r"^\s*#\s*include.*$", "", file.read(), flags=re.M)
    text = re.sub(r"^#define QUIRE_API .*$", "#define QUIRE_API", text, flags=re.M)
    return subprocess.run(["cc", "-E", "-P", "-xc", "-"], input=text, capture_output=True, text=True, check=True).stdout


class Library:
    """The declarations, the library, and errors as exceptions."""

    def __init__(self):
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations())
        self.lib = self.ffi.dlopen(os.path.join(BINARY, "client/libquire.so"))

    def check(self, status):
        if status:
            text = self.ffi.string(self.lib.quire_last_error().text).decode()
            raise RuntimeError(f"{self.ffi.string(self.lib.quire_status_name(status)).decode()}: {text}")

    def codec(self, text, key):
        """A struct quire_codec_spec from "chan:bits=4,group=32"."""
        spec = self.ffi.new("struct quire_codec_spec *")
        self.check(self.lib.quire_codec_parse(text.encode(), key, spec))
        return spec[0]


class Server:
    """A quired on a socket of its own, and one client of it."""

    def __init__(self, library):
        self.folder = tempfile.mkdtemp(prefix="quire-e2e-")
        self.library = library
        target = f"unix:{self.folder}/s"
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen([os.path.join(BINARY, "server/quired"), "--listen", target, "--memory", "512MiB"],
                                        stdout=self.log, stderr=self.log)
        self.client = library.ffi.new("quire_client **")
        deadline = time.monotonic() + 120
        while library.lib.quire_client_open(target.encode(), library.ffi.NULL, self.client):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise RuntimeError("quired does not answer")
            time.sleep(0.1)

    def stop(self):
        if self.client[0]:
            self.library.lib.quire_client_close(self.client)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


class Session:
    """One session: appends of one layer, fetches of one layer."""

    def __init__(self, server, name, policy=None, stored=PRE):
        """policy: dict of struct quire_policy's fields, codecs and overrides as text; None: open what is there."""
        self.server, self.library, self.stored = server, server.library, stored
        ffi, lib = self.library.ffi, self.library.lib
        options = ffi.new("struct quire_open_options *")
        lib.quire_open_options_init(options)
        options.flags = lib.QUIRE_OPEN_WRITE
        if policy is not None:
            fingerprint, made = self.register(), ffi.new("struct quire_policy *")
            lib.quire_policy_default(made)
            for field, value in policy.items():
                if field == "overrides":
                    continue
                codec = field in ("key", "value")
                setattr(made, field, self.library.codec(value, field == "key") if codec else value)
            for text in policy.get("overrides", []):
                self.library.check(lib.quire_policy_override(made, text.encode()))
            options.flags |= lib.QUIRE_OPEN_CREATE | lib.QUIRE_OPEN_EXCLUSIVE
            options.fingerprint, options.policy = fingerprint, made
        self.handle = ffi.new("quire_session **")
        self.library.check(lib.quire_session_open(server.client[0], name.encode(), options, self.handle))
        self.name = name

    def register(self):
        ffi, lib = self.library.ffi, self.library.lib
        name, fingerprint = ffi.new("char[]", b"SmolLM2-135M"), ffi.new("uint8_t[32]")
        rope = ffi.new("struct quire_rope[1]", [{"type": lib.QUIRE_ROPE_DEFAULT, "layout": lib.QUIRE_ROPE_HALF,
                                                 "rotary_dim": smollm2.DIM, "theta": smollm2.THETA}])
        layers = ffi.new("struct quire_layers[1]", [{
            "count": smollm2.LAYERS, "query_heads": smollm2.QUERY_HEADS, "kv_heads": smollm2.KV_HEADS,
            "key_dim": smollm2.DIM, "value_dim": smollm2.DIM, "rope_stored": self.stored}])
        model = ffi.new("struct quire_model *", {"name": name, "layers": layers, "layer_runs": 1, "ropes": rope,
                                                 "rope_count": 1})
        self.library.check(lib.quire_model_register(self.server.client[0], model, fingerprint))
        return fingerprint

    def append(self, layer, first, key, value):
        ffi = self.library.ffi
        key, value = np.ascontiguousarray(key), np.ascontiguousarray(value)
        keys, values = (ffi.new("void *[1]", [ffi.cast("void *", x.ctypes.data)]) for x in (key, value))
        request = ffi.new("struct quire_append *", {
            "position": first, "tokens": len(key), "first_layer": layer, "layers": 1,
            "dtype": self.library.lib.QUIRE_F16, "key": ffi.cast("const void *const *", keys),
            "value": ffi.cast("const void *const *", values)})
        self.library.check(self.library.lib.quire_append(self.handle[0], request, ffi.NULL))

    def fetch(self, layer, tokens, rotate=True):
        """Keys, rotated by the client unless told otherwise, and values, FP32 [tokens][KV_HEADS][DIM]."""
        ffi = self.library.ffi
        key, value = (np.empty((tokens, smollm2.KV_HEADS, smollm2.DIM), np.float32) for _ in range(2))
        keys, values = (ffi.new("void *[1]", [ffi.cast("void *", x.ctypes.data)]) for x in (key, value))
        request = ffi.new("struct quire_fetch *", {
            "position": 0, "tokens": tokens, "first_layer": layer, "layers": 1, "dtype": self.library.lib.QUIRE_F32,
            "key": ffi.cast("void *const *", keys), "value": ffi.cast("void *const *", values),
            "rotate": rotate and self.stored == PRE})
        if tokens:
            self.library.check(self.library.lib.quire_fetch(self.handle[0], request))
        return key, value

    def info(self):
        out = self.library.ffi.new("struct quire_session_info *")
        self.library.check(self.library.lib.quire_session_info(self.handle[0], out))
        return out

    def close(self):
        self.library.lib.quire_session_close(self.handle)

    def drop(self):
        self.close()
        self.library.check(self.library.lib.quire_session_drop(self.server.client[0], self.name.encode(), True))


class SessionCache:
    """A session as the model's cache. `served`: a block sees the session as it was before the block came, and
    itself in FP16; else the block goes in first, and with a window of 0 it comes back from pages, too.
    `rotate_here`: keys come as they are stored, and numpy rotates them."""

    def __init__(self, session, served, rotate_here=False):
        self.session, self.served, self.rotate_here = session, served, rotate_here

    def exchange(self, layer, first, key, value):
        positions, turned = np.arange(first, first + len(key)), key
        if self.session.stored == POST:
            turned = rotate16(key, positions)
        if not self.served:
            self.session.append(layer, first, turned, value)
            keys, values = self.session.fetch(layer, first + len(key), not self.rotate_here)
            return smollm2.rotate(keys, np.arange(len(keys))) if self.rotate_here else keys, values
        old_key, old_value = self.session.fetch(layer, first)
        self.session.append(layer, first, turned, value)
        own = smollm2.rotate(key.astype(np.float32), positions)
        return np.concatenate([old_key, own]), np.concatenate([old_value, value.astype(np.float32)])


def rotate16(key, positions):
    return smollm2.rotate(key.astype(np.float32), positions).astype(np.float16)
