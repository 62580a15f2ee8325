"""Encode arguments and results as JSON and decode them, by the annotations of the task.

The annotations alone decide how a value is encoded and decoded: no name in a payload is ever looked up or imported. A value
that would not be decoded to an equal value is rejected by the sender, with the name of the argument.
"""

from horsies.codec.failures import describe_exception
from horsies.codec.results import decode_result, encode_result
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
