"""Turn arguments and results into JSON and back, as the task's signature says.

The annotations alone decide how a value is written and read: no name in a payload is ever looked
up, let alone imported. What is accepted comes out equal on the other side; everything else is
refused where it is given, with the argument named.
"""

from horsies.codec.failures import describe_exception
from horsies.codec.outcomes import decode_result, encode_result
from horsies.codec.signature import Signature
from horsies.codec.values import ArgumentError, decode_json, encode_json

__all__ = [
    "ArgumentError",
    "Signature",
    "decode_json",
    "decode_result",
    "describe_exception",
    "encode_json",
    "encode_result",
]
