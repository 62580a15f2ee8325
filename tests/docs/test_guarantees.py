"""Every proof that the guarantees name exists."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
PROOF = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_every_guarantee_names_a_proof() -> None:
    promises = re.split(r"(?m)^\*\*\d+\. ", PAGE.read_text(encoding="utf-8"))[1:]

    assert len(promises) > 20
    assert [promise[:60] for promise in promises if not PROOF.search(promise)] == []


def test_every_proof_is_a_test_that_exists() -> None:
    proofs = PROOF.findall(PAGE.read_text(encoding="utf-8"))
    found = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in proofs}

    assert [f"{file}::{test}" for file, test in proofs if f"def {test}(" not in found[file]] == []
