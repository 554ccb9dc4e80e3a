"""Weights of Hugging Face's Llama family, in and out: config.json, names of tensors, and files of weights."""
