import contextlib
import email
import email.policy
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from holdfast_daemon.notify.channels.mail import Mail
from holdfast_daemon.notify.channels.sending import DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.message import Message, Notice
from tests.support.certificates import loopback_certificate

PASSWORD = "the-password-that-nobody-sees"


class Mailbox:
    """What a server got, and how it answers."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.answer = "250 taken"
        self.refused: set[str] = set()

    async def handle_RCPT(  # noqa: N802 (names of aiosmtpd)
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address in self.refused:
            return "550 unknown"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            parsed = email.message_from_bytes(envelope.content, policy=email.policy.default)
            assert isinstance(parsed, EmailMessage)
            self.mails.append(parsed)
            self.recipients.append(list(envelope.rcpt_tos))
        return self.answer


@contextlib.contextmanager
def smtp_server(mailbox: Mailbox, **settings: Any) -> Iterator[int]:
    controller: Any = Controller(mailbox, hostname="127.0.0.1", port=0, **settings)

    def trigger() -> None:  # aiosmtpd connects once to see that the server works, and takes port 0 for its port
        controller.port = controller.server.sockets[0].getsockname()[1]
        check()

    check, controller._trigger_server = controller._trigger_server, trigger
    controller.start()
    try:
        yield controller.server.sockets[0].getsockname()[1]
    finally:
        controller.stop()


def message(title: str = "a title", key: str = "run/i/0001-dead-rank") -> Message:
    notice = Notice(event="incident", status="open", key=key, what="what", next="next", unix_s=1.0, see="see")
    return Message(run="run", host="host", title=title, sent_unix_s=1.0, notices=(notice,))


def mail(port: int, **changes: Any) -> Mail:
    addresses = {"sender": "holdfast@example.com", "to": ("a@example.com", "b@example.com")}
    login = {"security": "none", "user": "", "password_file": None}
    return Mail(**{"host": "127.0.0.1", "port": port, **addresses, **login, **changes})


def logs_in(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    is_right = isinstance(data, LoginPassword) and data == LoginPassword(b"me", PASSWORD.encode())
    return AuthResult(success=is_right, handled=is_right)


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS. Clients trust its certificate."""
    certificate, key = loopback_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return file


def test_a_mail_arrives_and_two_about_one_incident_are_one_conversation() -> None:
    box = Mailbox()
    with smtp_server(box) as port:
        mail(port).send(message("[open] run: rank 3 was killed"))
        mail(port).send(message("[resolved] run"))
        mail(port).send(message(key="another"))
    first, second, other = box.mails
    assert (first["Subject"], first["From"]) == ("[open] run: rank 3 was killed", "holdfast@example.com")
    assert box.recipients[0] == ["a@example.com", "b@example.com"]
    assert first.get_content().splitlines()[:2] == ["what", "Next: next"]
    assert first["References"] == second["References"] != other["References"]
    assert first["Message-ID"] != second["Message-ID"]


def test_what_a_rank_said_adds_no_header() -> None:
    box = Mailbox()
    with smtp_server(box) as port:
        mail(port).send(message("died\r\nBcc: victim@example.com\r\n\r\nbody\x00\u2028é"))
    [got] = box.mails
    assert got["Bcc"] is None
    assert got["Subject"] == "died Bcc: victim@example.com body é"
    assert box.recipients == [["a@example.com", "b@example.com"]]


def test_starttls_and_a_login(secured: ssl.SSLContext, password: Path) -> None:
    box = Mailbox()
    settings = {"tls_context": secured, "require_starttls": True, "authenticator": logs_in, "auth_required": True}
    with smtp_server(box, **settings) as port:
        mail(port, security="starttls", user="me", password_file=password).send(message())
        assert len(box.mails) == 1
        password.write_text("wrong")
        with pytest.raises(DeliveryRefusedError, match="the server answers 535"):
            mail(port, security="starttls", user="me", password_file=password).send(message())
        with pytest.raises(DeliveryRefusedError):
            mail(port).send(message())


def test_a_certificate_that_nobody_knows_is_refused(
    secured: ssl.SSLContext, password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    box = Mailbox()
    with (
        smtp_server(box, tls_context=secured, authenticator=logs_in) as port,
        pytest.raises(DeliveryDelayedError, match="certificate cannot be verified"),
    ):
        mail(port, security="starttls", user="me", password_file=password).send(message())
    assert box.mails == []


def test_a_server_without_starttls_gets_nothing() -> None:
    box = Mailbox()
    with smtp_server(box) as port, pytest.raises(DeliveryRefusedError, match="lacks STARTTLS"):
        mail(port, security="starttls").send(message())
    assert box.mails == []


def test_answers_of_the_server_decide_about_a_retry() -> None:
    box, both = Mailbox(), {"a@example.com", "b@example.com"}
    with smtp_server(box) as port:
        for answer, refused, error, text in (
            (f"451 later, {PASSWORD}", set(), DeliveryDelayedError, "451"),
            ("554 never", set(), DeliveryRefusedError, "554"),
            ("250 taken", {"b@example.com"}, DeliveryRefusedError, "1 of 2 recipients"),
            ("250 taken", both, DeliveryRefusedError, "all recipients"),
        ):
            box.answer, box.refused = answer, refused
            with pytest.raises(error, match=text) as raised:
                mail(port).send(message())
            assert PASSWORD not in str(raised.value)
    assert box.recipients == [["a@example.com"]]


def test_no_server_is_worth_another_attempt() -> None:
    with smtp_server(Mailbox()) as port:
        pass
    with pytest.raises(DeliveryDelayedError, match="Connection refused"):
        mail(port).send(message())
