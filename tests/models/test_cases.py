"""Every name by which a file is known to be of a family has a case elsewhere in this folder."""

from __future__ import annotations

from pelton.models.registry import ARCHITECTURES
from pelton.weights.checkpoint import open_checkpoint
from tests.models import tiny
from tests.models.test_hybrid import OTHER_FORMS
from tests.models.test_logits import FIXTURES


def test_config_names_are_judged_by_the_reference_library_or_beside_a_form_that_is() -> None:
    cases = {type(tiny.make(name)).__name__ for name in tiny.NAMES} | {form[2] for form in OTHER_FORMS}
    assert {name for architecture in ARCHITECTURES for name in architecture.config_names} <= cases


def test_gguf_names_are_judged_by_files_of_the_peers_converter() -> None:
    cases = {open_checkpoint(path).metadata["general.architecture"] for path in FIXTURES.glob("*.gguf")}
    assert {name for architecture in ARCHITECTURES for name in architecture.gguf_names} <= cases
