"""Which modules the first steps import: the agent's warm parent imports them ahead for the next generation."""

import sys

_SETTLED_AFTER_STEPS = 2


class NewModules:
    """Tells once, after the second completed step, what was imported since this object was made."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._told = False

    def after(self, completed_steps: int) -> list[str]:
        """Return the new modules' names the first time that enough steps are complete, else nothing.

        Only parts of packages that were there before, and of torch: anything else is the user's own code,
        whose import may have side effects.
        """
        if self._told or completed_steps < _SETTLED_AFTER_STEPS:
            return []
        self._told = True
        # list() first: another thread may be importing right now.
        return sorted(name for name in list(sys.modules) if name not in self._before and self._is_known(name))

    def _is_known(self, name: str) -> bool:
        package = name.partition(".")[0]
        return package == "torch" or package in self._before
