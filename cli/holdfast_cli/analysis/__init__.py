"""Diagnoses a hang from the Flight Recorder dumps of any job: what ``holdfast analyze`` does."""
