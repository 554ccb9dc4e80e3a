"""Integrations with other projects' training loops. Each module needs its own framework; nothing else imports it."""
