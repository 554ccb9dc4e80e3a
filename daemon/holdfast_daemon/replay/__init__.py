"""The recording of the core's input, from which a verdict can be reached again."""
