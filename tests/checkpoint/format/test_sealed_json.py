import json

import pytest

from holdfast_checkpoint.format.sealed_json import SealError, digest_of, seal, unseal, unseal_format

BODY = {"format": 5, "run": "demo", "step": 400}


def test_a_document_returns_its_body() -> None:
    assert unseal(seal(BODY)) == BODY
    assert unseal_format(seal(BODY), 5) == {"run": "demo", "step": 400}


def test_a_document_of_another_format_is_named_before_its_digest_is_checked() -> None:
    with pytest.raises(ValueError, match="it has format 5, not 6") as raised:
        unseal_format(seal(BODY).replace(b"400", b"401"), 6)
    assert not isinstance(raised.value, SealError)


@pytest.mark.parametrize("damage", [(b"400", b"401"), (b"}\n", b"} \n"), (b'"body"', b'"bodx"')])
def test_one_changed_byte_is_damage(damage: tuple[bytes, bytes]) -> None:
    with pytest.raises(SealError, match="is damaged"):
        unseal(seal(BODY).replace(*damage))


@pytest.mark.parametrize("body", [[1, 2], "text", 7, None])
def test_a_body_that_is_no_object_is_damage_even_under_its_right_digest(body: object) -> None:
    text = json.dumps(body, separators=(",", ":"))
    document = f'{{"body":{text},"digest":"{digest_of(text.encode())}"}}\n'.encode()
    with pytest.raises(SealError, match="not a sealed JSON object"):
        unseal(document)


def test_a_document_that_is_nested_too_deeply_is_damage() -> None:
    with pytest.raises(SealError, match="not a sealed JSON document"):
        unseal(b"[" * 100_000)
