# SPDX-License-Identifier: Apache-2.0
"""Every method of the service, from the .proto files alone, against servers of its own.

Formulas are those of docs/FORMULAS.md, written down here a second time.
"""
import math
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from quire.v1 import quire_pb2 as pb
from quire.v1 import quire_pb2_grpc

from interop import error_detail

LAYERS, HEADS, QUERY_HEADS, KEY_DIM, VALUE_DIM = 2, 2, 4, 32, 16
THETA = 10000.0
TOKENS = 300  # one sealed block of 128, then the tail
STEP_4_BIT = 2.0 / 15  # widest step of a 4-bit code: values lie in [-1, 1]


class Server:
    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="quire-interop-")
        self.target = f"unix:{self.folder}/s"
        reading, writing = os.pipe()
        program = os.path.join(os.environ["QUIRE_BINARY"], "server", "quired")
        self.process = subprocess.Popen(
            [program, "--listen", self.target, "--memory", "128MiB", "--log-level", "warn",
             "--ready-fd", str(writing), *flags], pass_fds=[writing])
        os.close(writing)
        with os.fdopen(reading) as ready:
            self.addresses = ready.read().split()
        if self.target not in self.addresses:
            raise RuntimeError(f"quired did not start: {self.process.wait()}")
        self.channel = grpc.insecure_channel(self.target)
        self.quire = quire_pb2_grpc.QuireStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def stop(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        shutil.rmtree(self.folder)
        if code:
            raise RuntimeError(f"quired ended with {code}")


def inv_freq():
    return [THETA ** (-2 * i / KEY_DIM) for i in range(KEY_DIM // 2)]


def a_model(name="interop"):
    rope = pb.Rope(layout=pb.HALF, rotary_dim=KEY_DIM, attention_factor=1.0,
                   inv_freq=inv_freq())
    layers = pb.LayerGeometry(count=LAYERS, query_heads=QUERY_HEADS, kv_heads=HEADS,
                              key_dim=KEY_DIM, value_dim=VALUE_DIM, rope_stored=pb.ROPE_PRE)
    return pb.Model(name=name, revision="r1", layers=[layers], ropes=[rope])


def row(layer, which, token, head, dim):
    return [math.sin(0.01 * token + 0.3 * c + layer + 2 * head + 5 * which)
            for c in range(dim)]


def rows_of(first, tokens, first_layer=0, layers=LAYERS):
    out = bytearray()
    for layer in range(first_layer, first_layer + layers):
        for which, dim in ((0, KEY_DIM), (1, VALUE_DIM)):
            for token in range(first, first + tokens):
                for head in range(HEADS):
                    out += struct.pack(f"<{dim}f", *row(layer, which, token, head, dim))
    return bytes(out)


def rotate(x, position):
    half = KEY_DIM // 2
    out = list(x)
    for i, frequency in enumerate(inv_freq()):
        c, s = math.cos(position * frequency), math.sin(position * frequency)
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i + half] * c + x[i] * s
    return out


def unpack(part, code):
    """Rows of a part: (keys, values), each [token][head] -> list of floats."""
    size = {"f": 4, "e": 2}[code]
    at, result = 0, []
    for dim in (KEY_DIM, VALUE_DIM):
        tensor = []
        for _ in range(part.tokens):
            heads = []
            for _ in range(part.heads):
                heads.append(struct.unpack_from(f"<{dim}{code}", part.rows, at))
                at += dim * size
            tensor.append(heads)
        result.append(tensor)
    assert at == len(part.rows)
    return result


class Service(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.quire = cls.server.quire
        cls.fingerprint = cls.quire.RegisterModel(
            pb.RegisterModelRequest(model=a_model())).fingerprint

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self, name):
        return self.quire.OpenSession(pb.OpenSessionRequest(
            name=name, fingerprint=self.fingerprint, create=True, write=True)).info

    def append(self, info, first, tokens, **more):
        return self.quire.Append(pb.AppendRequest(
            session=info.session, epoch=info.epoch, position=first, tokens=tokens,
            layers=LAYERS, dtype=pb.F32, rows=rows_of(first, tokens), **more))

    def filled(self, name):
        info = self.open(name)
        for first in range(0, TOKENS, 100):
            self.append(info, first, 100)
        return info

    def fetch(self, info, **more):
        request = {"session": info.session, "tokens": TOKENS, "layers": LAYERS,
                   "expand": True, "dtype": pb.F32}
        request.update(more)
        return [part for chunk in self.quire.Fetch(pb.FetchRequest(**request))
                for part in chunk.parts]

    def refused(self, code, name, call, *arguments):
        with self.assertRaises(grpc.RpcError) as caught:
            result = call(*arguments)
            if hasattr(result, "__next__"):
                list(result)
        self.assertEqual(caught.exception.code(), code)
        detail = error_detail(caught.exception)
        self.assertEqual(detail.name, name)
        return detail, caught.exception.details()

    def test_hello(self):
        reply = self.quire.Hello(pb.HelloRequest())
        self.assertEqual(reply.page_version, 1)
        self.assertEqual(len(reply.instance), 16)
        self.assertGreaterEqual(reply.max_message_bytes, 1 << 20)

    def test_model_round_trip(self):
        reply = self.quire.GetModel(pb.GetModelRequest(fingerprint=self.fingerprint))
        self.assertEqual(reply.model.revision, "r1")
        self.assertEqual(reply.model.layers[0].key_dim, KEY_DIM)
        again = self.quire.RegisterModel(pb.RegisterModelRequest(model=reply.model))
        self.assertEqual(again.fingerprint, self.fingerprint)

    def test_expanded_rows_come_back(self):
        info = self.filled("expanded")
        seen = {layer: 0 for layer in range(LAYERS)}
        for part in self.fetch(info):
            self.assertEqual(part.status, pb.PART_OK)
            self.assertEqual(part.position, seen[part.layer])
            self.assertEqual((part.first_head, part.heads), (0, HEADS))
            for which, tensor in enumerate(unpack(part, "f")):
                dim = (KEY_DIM, VALUE_DIM)[which]
                for t, heads in enumerate(tensor):
                    for head, got in enumerate(heads):
                        wanted = row(part.layer, which, part.position + t, head, dim)
                        worst = max(abs(a - b) for a, b in zip(got, wanted))
                        self.assertLess(worst, STEP_4_BIT / 2 + 1e-3)
            seen[part.layer] += part.tokens
        self.assertEqual(set(seen.values()), {TOKENS})

    def test_rotation_is_the_formula(self):
        info = self.filled("rotated")
        for shift in (0, 1000):
            plain = self.fetch(info, first_layer=1, layers=1)
            turned = self.fetch(info, first_layer=1, layers=1, rotate=True,
                                position_shift=shift)
            self.assertEqual(len(plain), len(turned))
            for a, b in zip(plain, turned):
                keys, values = unpack(a, "f")
                rotated, same = unpack(b, "f")
                self.assertEqual(values, same)
                for t in range(a.tokens):
                    for head in range(HEADS):
                        wanted = rotate(keys[t][head], a.position + t + shift)
                        worst = max(abs(x - y) for x, y in zip(rotated[t][head], wanted))
                        self.assertLess(worst, 2e-3)

    def test_head_and_token_range_in_half_precision(self):
        info = self.filled("range")
        parts = self.fetch(info, position=100, tokens=50, first_layer=1, layers=1,
                           first_head=1, head_count=1, dtype=pb.F16)
        self.assertEqual(sum(part.tokens for part in parts), 50)
        for part in parts:
            self.assertEqual((part.layer, part.first_head, part.heads), (1, 1, 1))
            keys, _ = unpack(part, "e")
            wanted = row(1, 0, part.position, 1, KEY_DIM)
            self.assertLess(max(abs(a - b) for a, b in zip(keys[0][0], wanted)), 0.07)

    def test_encoded_pages_come_as_they_are(self):
        info = self.filled("encoded")
        parts = self.fetch(info, expand=False, dtype=pb.DTYPE_UNSPECIFIED)
        pages = [part for part in parts if part.page]
        self.assertEqual(len(pages), LAYERS)
        for part in pages:
            self.assertEqual(part.page[:8], b"QUIREPG\0")
            self.assertEqual(struct.unpack_from("<I", part.page, 24)[0], len(part.page))
        tails = [part for part in parts if part.rows]
        self.assertEqual(sum(part.tokens for part in tails), LAYERS * (TOKENS - 128))

    def test_attend_is_softmax_over_the_fetched_rows(self):
        info = self.filled("attend")
        parts = self.fetch(info, layers=1, rotate=True)
        keys, values = [], []
        for part in parts:
            k, v = unpack(part, "f")
            keys += k
            values += v
        position = 250
        queries = [[0.1 * ((c + h) % 5) for c in range(KEY_DIM)] for h in range(QUERY_HEADS)]
        reply = self.quire.Attend(pb.AttendRequest(
            session=info.session, layers=1, positions=[position], dtype=pb.F32,
            queries=b"".join(struct.pack(f"<{KEY_DIM}f", *q) for q in queries)))
        output = struct.unpack(f"<{QUERY_HEADS * VALUE_DIM}f", reply.output)
        lse = struct.unpack(f"<{QUERY_HEADS}f", reply.lse)
        for h, query in enumerate(queries):
            head = h * HEADS // QUERY_HEADS
            scores = [sum(a * b for a, b in zip(query, keys[t][head])) / math.sqrt(KEY_DIM)
                      for t in range(position + 1)]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            total = sum(weights)
            self.assertLess(abs(lse[h] - top - math.log(total)), 1e-3)
            for c in range(VALUE_DIM):
                wanted = sum(w * values[t][head][c] for t, w in enumerate(weights)) / total
                self.assertLess(abs(output[h * VALUE_DIM + c] - wanted), 2e-3)

    def test_append_stream_replies_in_order(self):
        info = self.open("stream")
        requests = (pb.AppendRequest(
            session=info.session, epoch=info.epoch, position=first, tokens=10, layers=LAYERS,
            dtype=pb.F32, rows=rows_of(first, 10)) for first in range(0, 100, 10))
        lengths = [reply.committed for reply in self.quire.AppendStream(requests)]
        self.assertEqual(lengths, list(range(10, 101, 10)))

    def test_repeat_gap_conflict(self):
        info = self.open("positions")
        self.append(info, 0, 20)
        self.assertEqual(self.append(info, 10, 20).repeated_tokens, 10)
        detail, text = self.refused(grpc.StatusCode.FAILED_PRECONDITION, "EGAP",
                                    self.append, info, 40, 5)
        self.assertEqual(detail.length, 30)
        self.assertIn("30", text)
        other = pb.AppendRequest(session=info.session, epoch=info.epoch, tokens=20,
                                 layers=LAYERS, dtype=pb.F32, rows=rows_of(1, 20))
        self.refused(grpc.StatusCode.ALREADY_EXISTS, "ECONFLICT", self.quire.Append, other)

    def test_bad_values_are_named(self):
        info = self.open("values")
        rows = bytearray(rows_of(0, 4))
        at = (2 * HEADS + 1) * KEY_DIM + 5  # layer 0, token 2, head 1, channel 5
        struct.pack_into("<f", rows, at * 4, math.nan)
        request = pb.AppendRequest(session=info.session, epoch=info.epoch, tokens=4,
                                   layers=LAYERS, dtype=pb.F32, rows=bytes(rows))
        detail, _ = self.refused(grpc.StatusCode.INVALID_ARGUMENT, "EVALUE",
                                 self.quire.Append, request)
        self.assertEqual((detail.layer, detail.position, detail.head, detail.channel),
                         (0, 2, 1, 5))
        self.assertEqual(self.quire.GetSession(pb.GetSessionRequest(name="values")).longest, 0)

    def test_bad_requests_are_refused(self):
        info = self.filled("bad")
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.refused(grpc.StatusCode.NOT_FOUND, "ENOTFOUND", self.quire.GetSession,
                     pb.GetSessionRequest(name="nobody"))
        self.refused(grpc.StatusCode.OUT_OF_RANGE, "ERANGE", self.quire.Fetch,
                     pb.FetchRequest(session=info.session, tokens=TOKENS + 1, layers=LAYERS))
        self.refused(invalid, "EINVAL", self.quire.Fetch,
                     pb.FetchRequest(session=info.session, tokens=1, layers=1, expand=True))
        self.refused(invalid, "EINVAL", self.quire.Attend,
                     pb.AttendRequest(session=info.session, layers=1, positions=[1],
                                      dtype=pb.F32, queries=b"short"))
        self.refused(invalid, "EINVAL", self.quire.GetModel,
                     pb.GetModelRequest(fingerprint=b"short"))
        self.refused(invalid, "EINVAL", self.quire.Append,
                     pb.AppendRequest(session=info.session, epoch=info.epoch))
        self.refused(invalid, "EINVAL", self.quire.RegisterModel,
                     pb.RegisterModelRequest())

    def test_sessions_are_listed_forked_cut_and_dropped(self):
        info = self.filled("tree-a")
        fork = self.quire.ForkSession(pb.ForkSessionRequest(**{"from": "tree-a", "to": "tree-b",
                                                               "length": 200}))
        self.assertEqual(fork.length, 200)
        names = [s.name for s in self.quire.ListSessions(
            pb.ListSessionsRequest(prefix="tree-")).sessions]
        self.assertEqual(names, ["tree-a", "tree-b"])
        cut = self.quire.TruncateSession(pb.TruncateSessionRequest(
            session=info.session, epoch=info.epoch, length=150))
        self.assertEqual(cut.length, 150)
        self.quire.CloseSession(pb.CloseSessionRequest(session=info.session, epoch=info.epoch))
        self.quire.DropSession(pb.DropSessionRequest(name="tree-a"))
        self.refused(grpc.StatusCode.NOT_FOUND, "ENOTFOUND", self.quire.GetSession,
                     pb.GetSessionRequest(name="tree-a"))
        self.assertEqual(self.quire.GetSession(pb.GetSessionRequest(name="tree-b")).length, 200)

    def test_stat_names_units(self):
        metrics = {m.name: m for m in self.quire.Stat(pb.StatRequest()).metrics}
        self.assertEqual(metrics["server.calls"].unit, "calls")
        self.assertGreater(metrics["server.calls"].value, 0)

    def test_health_check(self):
        for service in ("", "quire.v1.Quire"):
            reply = self.server.health.Check(health_pb2.HealthCheckRequest(service=service))
            self.assertEqual(reply.status, health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            self.server.health.Check(health_pb2.HealthCheckRequest(service="other"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_health_watch_of_an_unknown_service(self):
        watch = self.server.health.Watch(health_pb2.HealthCheckRequest(service="other"))
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        watch.cancel()


class Drain(unittest.TestCase):
    def test_health_watch_hears_of_the_drain(self):
        server = Server("--drain-notice", "1s")
        seen, ended = [], threading.Event()
        watch = server.health.Watch(health_pb2.HealthCheckRequest())

        def listen():
            try:
                for reply in watch:
                    seen.append(reply.status)
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        server.process.send_signal(signal.SIGTERM)
            except grpc.RpcError as error:
                seen.append(error.code())
            ended.set()

        threading.Thread(target=listen, daemon=True).start()
        self.assertTrue(ended.wait(20))
        self.assertEqual(seen, [health_pb2.HealthCheckResponse.SERVING,
                                health_pb2.HealthCheckResponse.NOT_SERVING,
                                grpc.StatusCode.UNAVAILABLE])
        server.stop()


if __name__ == "__main__":
    unittest.main()
