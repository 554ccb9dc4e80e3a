"""Records the input of the core, so that a verdict can be reached again."""
