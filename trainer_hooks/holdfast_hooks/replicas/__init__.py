"""Finds silent corruption: compares parameters that several ranks must hold alike."""
