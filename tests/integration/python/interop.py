#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# A stranger's client: grpcio, stubs from our .proto, and the standard library. Must not know
# anything that the .proto files and docs do not say. usage: interop.py TARGET
import array
import math
import random
import struct
import sys
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from quire.v1 import quire_pb2 as pb
from quire.v1 import quire_pb2_grpc as pb_grpc

LAYERS, HEADS, QUERY_HEADS, DIM = 2, 2, 4, 32
TARGET = "unix:/nowhere"
EGAP, ENOTFOUND = 4, 6


def halves(count, rng):
    """`count` numbers that FP16 holds exactly."""
    return list(struct.unpack(f"<{count}e", struct.pack(f"<{count}e", *[rng.gauss(0, 1) for _ in range(count)])))


def pack(numbers):
    return struct.pack(f"<{len(numbers)}e", *numbers)


def floats(data):
    out = array.array("f")
    out.frombytes(data)
    return list(out)


def error_detail(error):
    """The ErrorDetail in google.rpc.Status (code = 1, message = 2, details = 3: Any), read by hand."""
    blob = dict(error.trailing_metadata())["grpc-status-details-bin"]
    detail = pb.ErrorDetail()
    for field, value in fields(blob):
        if field == 3:
            detail.ParseFromString(dict(fields(value))[2])
    return detail


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message's fields: varints and length-delimited ones."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        yield key >> 3, value


def attention(queries, keys, values):
    """Plain attention of every query head over all tokens; keys and values are [token][head][dim]."""
    out, lse = [], []
    for head in range(QUERY_HEADS):
        query = queries[head * DIM:(head + 1) * DIM]
        kv = head // (QUERY_HEADS // HEADS)
        rows = [(t * HEADS + kv) * DIM for t in range(len(keys) // (HEADS * DIM))]
        z = [sum(a * b for a, b in zip(query, keys[r:r + DIM])) / math.sqrt(DIM) for r in rows]
        top = max(z)
        weights = [math.exp(x - top) for x in z]
        total = sum(weights)
        out += [sum(w * values[r + c] for w, r in zip(weights, rows)) / total for c in range(DIM)]
        lse.append(top + math.log(total))
    return out, lse


class Interop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.channel = grpc.insecure_channel(TARGET)
        grpc.channel_ready_future(cls.channel).result(timeout=10)
        cls.stub = pb_grpc.QuireStub(cls.channel)
        geometry = pb.LayerGeometry(count=LAYERS, query_heads=QUERY_HEADS, kv_heads=HEADS, key_dim=DIM,
                                    value_dim=DIM, rope=0, rope_stored=pb.ROPE_POST)
        rope = pb.Rope(layout=pb.HALF, rotary_dim=DIM, attention_factor=1.0,
                       inv_freq=[10000.0 ** (-2 * i / DIM) for i in range(DIM // 2)])
        model = pb.Model(name="interop", layers=[geometry], ropes=[rope])
        request = pb.RegisterModelRequest(model=model)
        cls.fingerprint = cls.stub.RegisterModel(request, timeout=10).fingerprint

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()

    def open(self, name):
        request = pb.OpenSessionRequest(name=name, fingerprint=self.fingerprint, create=True, must_create=True,
                                        write=True)
        info = self.stub.OpenSession(request, timeout=10).info
        self.addCleanup(self.stub.DropSession, pb.DropSessionRequest(name=name, force=True), timeout=10)
        return info

    def append(self, info, position, layers):
        """layers: one (keys, values) a layer, each [token][head][dim]."""
        rows = b"".join(pack(keys) + pack(values) for keys, values in layers)
        tokens = len(layers[0][0]) // (HEADS * DIM)
        request = pb.AppendRequest(session=info.session, epoch=info.epoch, position=position, tokens=tokens,
                                   layers=len(layers), dtype=pb.F16, rows=rows)
        return self.stub.Append(request, timeout=10)

    def fetch(self, info, tokens):
        """All layers as [layer] -> ([token][head][dim] keys, values), put together from the parts."""
        request = pb.FetchRequest(session=info.session, tokens=tokens, layers=LAYERS, expand=True, dtype=pb.F32)
        size = tokens * HEADS * DIM
        layers = [([None] * size, [None] * size) for _ in range(LAYERS)]
        for chunk in self.stub.Fetch(request, timeout=10):
            for part in chunk.parts:
                self.assertEqual(part.status, pb.PART_OK)
                numbers = floats(part.rows)
                half = part.tokens * part.heads * DIM
                self.assertEqual(len(numbers), 2 * half)
                for kind in range(2):
                    for row in range(part.tokens * part.heads):
                        token, head = part.position + row // part.heads, part.first_head + row % part.heads
                        at, source = (token * HEADS + head) * DIM, kind * half + row * DIM
                        layers[part.layer][kind][at:at + DIM] = numbers[source:source + DIM]
        return layers

    @staticmethod
    def numbers(tokens, seed):
        rng = random.Random(seed)
        size = tokens * HEADS * DIM
        return [(halves(size, rng), halves(size, rng)) for _ in range(LAYERS)]

    def test_hello_names_version_and_limits(self):
        reply = self.stub.Hello(pb.HelloRequest(), timeout=10)
        self.assertTrue(reply.server_version)
        self.assertEqual(len(reply.instance), 16)
        self.assertGreater(reply.max_message_bytes, 0)

    def test_a_tail_comes_back_exactly(self):
        info = self.open("tail")
        layers = self.numbers(5, seed=1)
        self.assertEqual(self.append(info, 0, layers).committed, 5)
        self.assertEqual(self.fetch(info, 5), [tuple(layer) for layer in layers])

    def test_sealed_pages_come_back_quantized(self):
        info = self.open("sealed")
        tokens = 400  # two pages of 128 are sealed, 144 tokens are in the tail
        layers = self.numbers(tokens, seed=2)
        self.append(info, 0, layers)
        worst = 0.0
        for got, put in zip(self.fetch(info, tokens), layers):
            for kind in range(2):
                self.assertNotIn(None, got[kind])
                error = sum((a - b) ** 2 for a, b in zip(got[kind], put[kind]))
                worst = max(worst, math.sqrt(error / sum(b * b for b in put[kind])))
                sinks, tail = 4 * HEADS * DIM, 256 * HEADS * DIM
                self.assertEqual(got[kind][:sinks], put[kind][:sinks])
                self.assertEqual(got[kind][tail:], put[kind][tail:])
        self.assertGreater(worst, 0.0)
        self.assertLess(worst, 0.12)  # 4 bits over groups of 32 normal numbers: 0.08

    def test_attend_agrees_with_plain_attention(self):
        info = self.open("attend")
        tokens = 6
        layers = self.numbers(tokens, seed=3)
        self.append(info, 0, layers)
        queries = halves(QUERY_HEADS * DIM, random.Random(4))
        request = pb.AttendRequest(session=info.session, layers=LAYERS, positions=[tokens - 1], dtype=pb.F16,
                                   queries=pack(queries * LAYERS))
        reply = self.stub.Attend(request, timeout=10)
        output, lse = floats(reply.output), floats(reply.lse)
        for layer, (keys, values) in enumerate(layers):
            wanted, wanted_lse = attention(queries, keys, values)
            bound = 2e-3 * max(abs(x) for x in wanted)
            for got, right in zip(output[layer * QUERY_HEADS * DIM:], wanted):
                self.assertAlmostEqual(got, right, delta=bound)
            for got, right in zip(lse[layer * QUERY_HEADS:], wanted_lse):
                self.assertAlmostEqual(got, right, delta=1e-3)

    def test_a_gap_says_how_long_the_session_is(self):
        info = self.open("gap")
        self.append(info, 0, self.numbers(3, seed=5))
        with self.assertRaises(grpc.RpcError) as caught:
            self.append(info, 7, self.numbers(1, seed=6))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        detail = error_detail(caught.exception)
        self.assertEqual((detail.code, detail.length), (EGAP, 3))

    def test_an_unknown_session_is_not_found(self):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.GetSession(pb.GetSessionRequest(name="nobody"), timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(error_detail(caught.exception).code, ENOTFOUND)

    def test_stock_health_client_sees_serving(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", "quire.v1.Quire"):
            request = health_pb2.HealthCheckRequest(service=service)
            self.assertEqual(health.Check(request, timeout=10).status, health_pb2.HealthCheckResponse.SERVING)
            watch = health.Watch(request, timeout=10)
            self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
            watch.cancel()


if __name__ == "__main__":
    TARGET = sys.argv.pop(1)
    unittest.main(verbosity=1)
