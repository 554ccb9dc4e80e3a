"""The API for operators."""
