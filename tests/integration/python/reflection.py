# SPDX-License-Identifier: Apache-2.0
"""Reflection as tools use it: a client that has no .proto file asks the server for one and calls it.

usage: reflection.py TARGET
"""
import sys
import unittest

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

FILES = ("quire/v1/quire.proto", "grpc/health/v1/health.proto", "grpc/reflection/v1/reflection.proto",
         "grpc/reflection/v1alpha/reflection.proto")
SERVICES = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
            "quire.v1.Quire"]
Request, Response = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse


class ReflectionTest(unittest.TestCase):
    def setUp(self):
        self.channel = grpc.insecure_channel(sys.argv[1])
        self.addCleanup(self.channel.close)

    def ask(self, requests, version="v1"):
        """Answers of one stream; v1 and v1alpha are the same on the wire."""
        call = self.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                          Request.SerializeToString, Response.FromString)
        return list(call(iter(requests), timeout=30))

    def test_the_stock_client_finds_the_services_and_calls_one(self):
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.assertEqual(sorted(database.get_services()), SERVICES)
        pool = descriptor_pool.DescriptorPool(database)
        service = pool.FindServiceByName("quire.v1.Quire")
        method = service.FindMethodByName("Hello")
        request = message_factory.GetMessageClass(method.input_type)
        reply = message_factory.GetMessageClass(method.output_type)
        call = self.channel.unary_unary("/quire.v1.Quire/Hello", request.SerializeToString, reply.FromString)
        self.assertEqual(call(request(), timeout=30).page_version, 1)
        self.assertIn("AppendStream", [m.name for m in service.methods])

    def test_the_descriptor_is_that_of_our_file(self):
        from quire.v1 import quire_pb2  # what protoc made of the .proto file
        own = descriptor_pb2.FileDescriptorProto.FromString(quire_pb2.DESCRIPTOR.serialized_pb)
        answers = self.ask([Request(file_by_filename=FILES[0]), Request(file_containing_symbol="quire.v1.Quire.Fetch")])
        self.assertEqual(len(answers), 2)
        for answer in answers:
            told = [descriptor_pb2.FileDescriptorProto.FromString(f)
                    for f in answer.file_descriptor_response.file_descriptor_proto]
            self.assertEqual(len(told), 1)
            for message in told[0].message_type:
                for field in message.field:
                    field.ClearField("json_name")  # only files that protoc writes have it
            self.assertEqual(told[0], own)

    def test_one_stream_answers_many_questions_in_order(self):
        requests = [Request(host=f"h{i}", file_by_filename=FILES[i % 4]) for i in range(40)]
        for version in "v1", "v1alpha":
            answers = self.ask(requests, version)
            self.assertEqual(len(answers), 40)
            for request, answer in zip(requests, answers):
                self.assertEqual(answer.original_request, request)
                self.assertEqual(answer.valid_host, request.host)
                told = descriptor_pb2.FileDescriptorProto.FromString(
                    answer.file_descriptor_response.file_descriptor_proto[0])
                self.assertEqual(told.name, request.file_by_filename)

    def test_every_name_in_every_file_is_found(self):
        for name in FILES:
            file = self.ask([Request(file_by_filename=name)])[0].file_descriptor_response.file_descriptor_proto[0]
            told = descriptor_pb2.FileDescriptorProto.FromString(file)
            names = []

            def add(message, prefix, names=names):
                full = f"{prefix}.{message.name}"
                names.append(full)
                names.extend(f"{full}.{part.name}" for part in [*message.field, *message.oneof_decl])
                names.extend(f"{full}.{e.name}" for e in message.enum_type)
                names.extend(f"{full}.{v.name}" for e in message.enum_type for v in e.value)
                for nested in message.nested_type:
                    add(nested, full)

            for message in told.message_type:
                add(message, told.package)
            for service in told.service:
                names.extend([f"{told.package}.{service.name}",
                              *(f"{told.package}.{service.name}.{m.name}" for m in service.method)])
            for enum in told.enum_type:
                names.extend([f"{told.package}.{enum.name}", *(f"{told.package}.{v.name}" for v in enum.value)])
            self.assertGreater(len(names), 5)
            answers = self.ask([Request(file_containing_symbol=n) for n in names])
            for symbol, answer in zip(names, answers):
                self.assertEqual(list(answer.file_descriptor_response.file_descriptor_proto), [file], symbol)

    def test_what_is_not_there_is_said_and_the_stream_goes_on(self):
        answers = self.ask([Request(file_containing_symbol="no.such"), Request(file_by_filename="x"), Request(),
                            Request(all_extension_numbers_of_type="quire.v1.Model"), Request(list_services="")])
        codes = [a.error_response.error_code for a in answers]
        self.assertEqual(codes, [grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.NOT_FOUND.value[0],
                                 grpc.StatusCode.INVALID_ARGUMENT.value[0], 0, 0])
        self.assertIn("no.such", answers[0].error_response.error_message)
        self.assertEqual(answers[3].all_extension_numbers_response.base_type_name, "quire.v1.Model")
        self.assertEqual(sorted(s.name for s in answers[4].list_services_response.service), SERVICES)

    def test_a_malformed_request_ends_its_stream_alone(self):
        call = self.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(iter([b"\x22\x50cut"]), timeout=30))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("ServerReflectionRequest", caught.exception.details())
        self.assertEqual(len(self.ask([Request(list_services="")])), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
