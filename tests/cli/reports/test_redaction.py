"""What never leaves the machine in a report, and what stays readable."""

import pytest

from holdfast_base.text import HIDDEN, without_secrets
from holdfast_cli.reports.redaction import command_line, redaction


@pytest.mark.parametrize(
    "text",
    [
        "token=abc-SECRET",
        "HF_TOKEN: abc-SECRET",
        'password = "two words SECRET"',
        "api_key='SECRET'",
        "Authorization: Bearer abcdSECRETefgh",
        "python x.py --token SECRET",
        "s3://user:SECRET@bucket/place",
        "redis://:SECRET@10.0.0.1:6379/0",
        "https://host/file?X-Amz-Signature=SECRET&x=1",
        "the token hf_SECRETabcdefgh was refused",
        "AKIASECRETSECRETSECR",
        "0123456789abcdef0123456789abcdef0123456789SECRET",
    ],
)
def test_secrets_in_texts_are_hidden(text: str) -> None:
    shown = without_secrets(text)
    assert "SECRET" not in shown and HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "rank 1 was killed by SIGKILL in optimizer of step 258",
        "5,179 tokens/s, 3 tokens lost",
        "no space left on /data (3 MB free): free space or set --checkpoints",
        "the monkey ate 3 keys",
        "step 9 from memory",
    ],
)
def test_plain_texts_stay(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "train.py", "--lr", "1e-3"], "python train.py --lr 1e-3"),
        (["python", "-m", "trainer", "--fast", "true"], "python -m trainer --fast true"),
        (["python", "train.py", "--name=alice", "--steps=40"], f"python train.py --name={HIDDEN} --steps=40"),
        (["python", "train.py", "--password", "1234"], f"python train.py --password {HIDDEN}"),
        (["python", "train.py", "words", "x.py"], f"python train.py {HIDDEN} x.py"),
        (["env", "A=b", "python"], f"env {HIDDEN} {HIDDEN}"),
    ],
)
def test_values_of_arguments_are_hidden_and_plain_numbers_are_not(words: list[str], expected: str) -> None:
    assert command_line(words, show_arguments=False) == expected


def test_arguments_are_shown_on_request_but_secrets_are_not() -> None:
    words = ["python", "train.py", "--name", "alice", "--api-key", "abc", "--data", "s3://u:p@bucket"]
    shown = command_line(words, show_arguments=True)
    assert shown == f"python train.py --name alice --api-key {HIDDEN} --data s3://{HIDDEN}@bucket"


def test_hosts_users_addresses_and_folders_are_hidden_on_request() -> None:
    text = "rank 3 on gpu-17 (10.1.2.3) wrote /home/alice/run/x.pt, gpu-170 did not"
    shown = redaction(["gpu-17", "gpu-170"], redact_hosts=True).text(text)
    assert shown == "rank 3 on node-0 ([address]) wrote [folder]/x.pt, node-1 did not"
    assert redaction(["gpu-17"], redact_hosts=False).text(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot reach redis://redis.internal:6379/0", "cannot reach redis://[host]:6379/0"),
        ("redis://me:secret@db.internal/0", f"redis://{HIDDEN}@[host]/0"),
        ("s3://team-bucket/run/step-5 is gone", "s3://[host]/run/step-5 is gone"),
        ("http://gpu-17:80/a, http://10.1.2.3/a", "http://node-0:80/a, http://[address]/a"),
        ("file:///home/alice/x.pt", "file://[folder]/x.pt"),
    ],
)
def test_hosts_and_buckets_of_urls_are_hidden_on_request(text: str, expected: str) -> None:
    assert redaction(["gpu-17"], redact_hosts=True).text(text) == expected


def test_the_node_of_a_local_run_is_no_name_to_hide() -> None:
    text = "rank 1 on local stopped; the local clock was right"
    assert redaction(["local"], redact_hosts=True).text(text) == text
