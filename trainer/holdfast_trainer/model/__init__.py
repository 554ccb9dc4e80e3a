"""The model, and its division into pipeline stages."""
