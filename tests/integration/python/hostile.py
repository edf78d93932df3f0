# SPDX-License-Identifier: Apache-2.0
"""Callers that mean harm, from the .proto files and a socket alone, against servers of their own.

Whatever they send, the server answers with an error, gives back what it held for them, and goes
on serving others. Must not use libquire.
"""
import random
import socket
import struct
import time
import unittest

import grpc
from quire.v1 import quire_pb2 as pb

from service import LAYERS, Server, a_model, rotate, rows_of, unpack

SEED = 20
EDGES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -2**63)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0
END_HEADERS, END_STREAM = 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def fetch_bytes(message):
    """A whole Fetch call as one client would write it to a fresh connection."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/quire.v1.Quire/Fetch"),
              (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
    head = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in fields)
    body = b"\0" + struct.pack(">I", len(message)) + message
    return (PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, head) +
            frame(DATA, END_STREAM, 1, body))


def attempt(call, request):
    """The reply, or the code of the failure."""
    try:
        reply = call(request, timeout=20)
        return list(reply) if hasattr(reply, "__next__") else reply
    except grpc.RpcError as error:
        return error.code()


class Hostile(unittest.TestCase):
    def serve(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        self.fingerprint = server.quire.RegisterModel(pb.RegisterModelRequest(model=a_model())).fingerprint
        return server

    def filled(self, server, name, tokens):
        info = server.quire.OpenSession(pb.OpenSessionRequest(
            name=name, fingerprint=self.fingerprint, create=True, write=True)).info
        server.quire.Append(pb.AppendRequest(session=info.session, epoch=info.epoch, tokens=tokens,
                                             layers=LAYERS, dtype=pb.F32, rows=rows_of(0, tokens)))
        return info

    def connect(self, server):
        peer = socket.socket(socket.AF_UNIX)
        self.addCleanup(peer.close)
        peer.settimeout(5)
        peer.connect(server.target.removeprefix("unix:"))
        return peer

    @staticmethod
    def stat(server):
        return {m.name: m.value for m in server.quire.Stat(pb.StatRequest(), timeout=10).metrics}

    def test_edges_of_numbers(self):
        server = self.serve()
        info = self.filled(server, "edges", 20)
        known = {"session": info.session, "tokens": 1, "layers": 1}
        writer = dict(known, epoch=info.epoch, dtype=pb.F32, rows=b"\0" * 384)
        calls = ((server.quire.Fetch, pb.FetchRequest, dict(known, expand=True, dtype=pb.F16, rotate=True)),
                 (server.quire.Append, pb.AppendRequest, writer),
                 (server.quire.Lookup, pb.LookupRequest, known))
        for call, message, fields in calls:
            for field in message.DESCRIPTOR.fields:
                for edge in EDGES:
                    try:
                        request = message(**dict(fields, **{field.name: edge}))
                    except (TypeError, ValueError, OverflowError):
                        continue  # this field cannot carry it
                    answer = attempt(call, request)
                    self.assertNotIn(answer, (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL,
                                              grpc.StatusCode.UNKNOWN), (field.name, edge))
        self.assertEqual(server.quire.GetSession(pb.GetSessionRequest(name="edges")).longest, 20)

    def test_bytes_that_are_almost_http2(self):
        server = self.serve("--handshake-timeout", "500ms")
        info = self.filled(server, "bytes", 300)
        good = fetch_bytes(pb.FetchRequest(session=info.session, tokens=300, layers=LAYERS).SerializeToString())
        rng = random.Random(SEED)
        for _ in range(100):
            wrong = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                wrong[rng.randrange(len(PREFACE), len(wrong))] = rng.randrange(256)
            self.connect(server).sendall(bytes(wrong[:rng.randrange(len(PREFACE), len(wrong) + 1)]))
        self.wait_for_rest(server)

    def test_readers_that_never_read_hold_nothing_for_long(self):
        server = self.serve("--stall-timeout", "500ms", "--fetch-pages", "4")
        info = self.filled(server, "slow", 4096)
        call = fetch_bytes(pb.FetchRequest(session=info.session, tokens=4096, layers=LAYERS).SerializeToString())
        for _ in range(20):
            self.connect(server).sendall(call)
        deadline = time.monotonic() + 10
        while self.stat(server)["server.fetches_stalled"] < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.wait_for_rest(server)
        self.assertEqual(self.stat(server)["server.fetches_stalled"], 20)

    def wait_for_rest(self, server):
        deadline = time.monotonic() + 10
        stat = self.stat(server)
        while (stat["server.pins"], stat["server.calls_live"]) != (0, 1) and time.monotonic() < deadline:
            time.sleep(0.05)
            stat = self.stat(server)
        self.assertEqual((stat["server.pins"], stat["server.calls_live"]), (0, 1))  # this Stat is live

    def test_a_shift_may_put_the_begin_of_a_page_below_zero(self):
        server = self.serve()
        info = self.filled(server, "shift", 300)
        for position in (60, 200):  # in the middle of a page; in the tail
            request = dict(session=info.session, position=position, tokens=3, layers=1, expand=True, dtype=pb.F32)
            plain, turned = (list(server.quire.Fetch(pb.FetchRequest(**request, **more)))[0].parts[0]
                             for more in ({}, {"rotate": True, "position_shift": -position}))
            (keys, values), (rotated, same) = unpack(plain, "f"), unpack(turned, "f")
            self.assertEqual(values, same)
            for token in range(3):
                for wanted, got in zip(rotate(keys[token][0], token), rotated[token][0]):
                    self.assertAlmostEqual(wanted, got, delta=2e-3)

    def test_lists_fit_the_smallest_message(self):
        server = self.serve("--max-message-bytes", "64KiB", "--fetch-chunk-bytes", "64KiB")
        names = [f"{i:04d}" + "é" * 125 for i in range(300)]
        for name in names:
            server.quire.OpenSession(pb.OpenSessionRequest(name=name, fingerprint=self.fingerprint, create=True))
        seen, more = [], True
        while more:
            reply = server.quire.ListSessions(pb.ListSessionsRequest(after=seen[-1] if seen else ""))
            seen += [session.name for session in reply.sessions]
            more = reply.more
        self.assertEqual(seen, names)


if __name__ == "__main__":
    unittest.main()
