"""Messages of the Open Inference Protocol over gRPC, made from the table below when the server starts.

The wire knows field numbers and types alone, and those are all that the table has; names of nested messages are ours.
There is no generated code, which would only run with the protobuf library that it was generated for. The messages live
in a pool of their own, so that a client library in the same process may define the same names.
"""

from functools import cache
from typing import Any

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
_NAMED_VERSION = "string name 1; string version 2"
LAYOUT = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": _NAMED_VERSION,
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1; string version 2; repeated string extensions 3",
    "ModelMetadataRequest": _NAMED_VERSION,
    "TensorMetadata": "string name 1; string datatype 2; repeated int64 shape 3",
    "ModelMetadataResponse": "string name 1; repeated string versions 2; string platform 3; "
    "repeated TensorMetadata inputs 4; repeated TensorMetadata outputs 5",
    "InferParameter": "one bool bool_param 1; one int64 int64_param 2; one string string_param 3; "
    "one double double_param 4; one uint64 uint64_param 5",
    "InferTensorContents": "repeated bool bool_contents 1; repeated int32 int_contents 2; "
    "repeated int64 int64_contents 3; repeated uint32 uint_contents 4; repeated uint64 uint64_contents 5; "
    "repeated float fp32_contents 6; repeated double fp64_contents 7; repeated bytes bytes_contents 8",
    "InferInputTensor": "string name 1; string datatype 2; repeated int64 shape 3; map InferParameter parameters 4; "
    "InferTensorContents contents 5",
    "InferRequestedOutputTensor": "string name 1; map InferParameter parameters 2",
    "InferOutputTensor": "string name 1; string datatype 2; repeated int64 shape 3; map InferParameter parameters 4; "
    "InferTensorContents contents 5",
    "ModelInferRequest": "string model_name 1; string model_version 2; string id 3; map InferParameter parameters 4; "
    "repeated InferInputTensor inputs 5; repeated InferRequestedOutputTensor outputs 6; "
    "repeated bytes raw_input_contents 7",
    "ModelInferResponse": "string model_name 1; string model_version 2; string id 3; map InferParameter parameters 4; "
    "repeated InferOutputTensor outputs 5; repeated bytes raw_output_contents 6",
    "ModelStatisticsRequest": _NAMED_VERSION,
    "StatisticDuration": "uint64 count 1; uint64 ns 2",
    "InferStatistics": "StatisticDuration success 1; StatisticDuration fail 2; StatisticDuration queue 3; "
    "StatisticDuration compute_infer 5; StatisticDuration cache_hit 7; StatisticDuration cache_miss 8",
    "ModelStatistics": "string name 1; string version 2; uint64 inference_count 4; uint64 execution_count 5; "
    "InferStatistics inference_stats 6",
    "ModelStatisticsResponse": "repeated ModelStatistics model_stats 1",
    "RepositoryIndexRequest": "string repository_name 1; bool ready 2",
    "ModelIndex": "string name 1; string version 2; string state 3; string reason 4",
    "RepositoryIndexResponse": "repeated ModelIndex models 1",
}
"""Fields of each message: `[repeated|map|one] TYPE NAME NUMBER`. `map` is by string, `one` a member of the oneof."""
METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStatistics",
    "RepositoryIndex",
)
"""Of each, the request is `METHODRequest` and the answer `METHODResponse`."""


@cache
def message_classes() -> dict[str, Any]:
    """Classes of the messages by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="shoal_oip.proto", package=PACKAGE, syntax="proto3")
    for name, fields in LAYOUT.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in LAYOUT}


def _describe(message: Any, fields: str) -> None:
    if "one " in fields:
        message.oneof_decl.add(name="parameter_choice")
    for words in filter(None, fields.split("; ")):
        *rule, kind, name, number = words.split()
        # 3 is LABEL_REPEATED, 1 LABEL_OPTIONAL, and 11 below TYPE_MESSAGE; a map is a repeated entry on the wire.
        field = message.field.add(name=name, number=int(number), label=3 if rule in (["repeated"], ["map"]) else 1)
        if rule == ["map"]:
            entry = message.nested_type.add(name=name.title() + "Entry")
            entry.options.map_entry = True
            _describe(entry, f"string key 1; {kind} value 2")
            field.type, field.type_name = 11, f".{PACKAGE}.{message.name}.{entry.name}"
            continue
        if rule == ["one"]:
            field.oneof_index = 0
        if kind in LAYOUT:
            field.type, field.type_name = 11, f".{PACKAGE}.{kind}"
        else:
            field.type = field.Type.Value(f"TYPE_{kind.upper()}")
