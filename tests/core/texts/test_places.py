"""How calls are spelled."""

import pytest

from holdfast_core.texts import places
from holdfast_proto.v1.store_pb2 import CallPlace


@pytest.mark.parametrize(
    ("description", "text"), [("mesh_tp", "group 5 (mesh_tp)"), ("", "group 5"), ("undefined", "group 5")]
)
def test_a_group_has_its_description_if_its_program_has_given_one(description: str, text: str) -> None:
    assert places.group(CallPlace(group="5", description=description)) == text
