"""Number formats, fp8 and loss scaling."""
