"""The reference trainer, slowed down until a test says hurry: there is time to do harm, on any machine.

The environment variable PACED_HURRY names a file: while it is not there, every step takes a little longer.
PACED_SPIKE_FROM names a step from which on a loss ten times as high is reported.
What is computed is the same.
"""
