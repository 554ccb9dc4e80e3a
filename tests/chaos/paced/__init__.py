"""The reference trainer, slowed down until a test hurries it, so that there is time to do harm on any machine.

The environment variable PACED_HURRY names a file. While it does not exist, every step takes a little longer.
From the step in PACED_SPIKE_FROM on, the reported loss is ten times as high. The computation is the same.
PACED_ODD names what else is odd and in which steps, such as ``no-loss@300-320 slow-data@400-900``.
"""
