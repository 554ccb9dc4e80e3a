"""The channel `email`."""

import hashlib
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path

from holdfast_daemon.notify.channels.sending import DeliveryDelayedError, DeliveryRefusedError, secret_of
from holdfast_daemon.notify.message import Message, shortened

_TIMEOUT_S = 15.0
_SUBJECT = 160


@dataclass(frozen=True, kw_only=True)
class Mail:
    """Sends a message by SMTP."""

    host: str
    port: int
    security: str
    """One of vocabulary.MAIL_SECURITY."""
    user: str
    """Empty: no login."""
    password_file: Path | None
    sender: str
    to: tuple[str, ...]

    def send(self, message: Message) -> None:
        """Send a message. Raises DeliveryRefusedError or DeliveryDelayedError."""
        password = secret_of(self.password_file) if self.password_file is not None else ""
        try:
            with self._connect() as server:
                if self.security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user:
                    server.login(self.user, password)
                refused = server.send_message(self._mail(message), self.sender, self.to)
        except smtplib.SMTPNotSupportedError:
            raise DeliveryRefusedError(
                f"the server lacks STARTTLS or logins: look at security = {self.security}"
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            raise _by_code(codes[0], f"the server refuses all recipients with {codes}") from None
        except smtplib.SMTPResponseException as error:
            # The text of a server may repeat what was sent to it, a password too: only its number is shown.
            raise _by_code(error.smtp_code, f"the server answers {error.smtp_code}") from None
        except ssl.SSLCertVerificationError as error:
            raise DeliveryDelayedError(f"its certificate cannot be verified: {error.verify_message}") from None
        except (OSError, smtplib.SMTPException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise DeliveryDelayedError(f"the connection failed: {reason}") from None
        if refused:
            raise DeliveryRefusedError(f"the server refuses {len(refused)} of {len(self.to)} recipients")

    def _connect(self) -> smtplib.SMTP:
        if self.security == "tls":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
        return smtplib.SMTP(self.host, self.port, timeout=_TIMEOUT_S)

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = shortened(message.title, _SUBJECT)  # one line: a line break would begin another header
        mail["From"] = self.sender
        mail["To"] = ", ".join(self.to)
        mail["Date"] = formatdate(localtime=True)
        mail["Message-ID"] = make_msgid(domain="holdfast.invalid")
        # Mail programs show all mails that name the same earlier one as one conversation.
        thread = hashlib.sha256(message.newest.key.encode()).hexdigest()[:32]
        mail["References"] = f"<{thread}@holdfast.invalid>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text)
        return mail


def _by_code(code: int, reason: str) -> Exception:
    return DeliveryDelayedError(reason) if 400 <= code < 500 else DeliveryRefusedError(reason)
