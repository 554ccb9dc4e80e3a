"""Removes from a rank's message what a check refuses.

Only the bad part is removed: a rank whose reports were refused as a whole, because of one odd number, would show no
progress and seem to hang. A message that is lenient loses bad fields, and any other one goes as a whole.
"""

import copy
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast_proto.checks.message_checker import CheckPlan, MessageChecker, length_of
from holdfast_proto.checks.value_rules import RefusedError, Rule

Refuse = Callable[[str], object]
"""Called with the reason for each part of a message that is removed."""


def clean(message: Message, checker: MessageChecker, refuse: Refuse) -> None:
    """Remove what is bad from a lenient message. Raises RefusedError if it says nothing without that."""
    try:
        checker.check(message)
    except RefusedError:
        _Cleaner(checker, refuse).clean(message, "")


class _Cleaner:
    def __init__(self, checker: MessageChecker, refuse: Refuse) -> None:
        self._checker = checker
        self._refuse = refuse

    def clean(self, message: Message, path: str) -> None:
        """Clean a message whose name in the whole is ``path``. Raises RefusedError if it must go."""
        plan = self._checker.plan_of(message.DESCRIPTOR)  # type: ignore[arg-type]
        if not plan.is_lenient:
            self._checker.check(message)
            return
        for one, _ in message.ListFields():
            rule = plan.rules.get(one.name)
            if rule is not None:
                self._clean_field(message, one, rule, plan, f"{path}{one.name}")
        for name in plan.required:
            if not getattr(message, name):
                raise RefusedError(f"{path}{name} is missing")

    def _clean_field(self, message: Message, one: FieldDescriptor, rule: Rule, plan: CheckPlan, path: str) -> None:
        value = getattr(message, one.name)
        try:
            if one.is_repeated:
                self._clean_items(value, one, rule, path)
            elif one.message_type is not None:
                self.clean(value, f"{path}.")
            else:
                rule(value, path)
        except RefusedError as error:
            if one.name in plan.essential:
                raise
            self._refuse(str(error))
            message.ClearField(one.name)

    def _clean_items(self, items: Any, one: FieldDescriptor, rule: Rule, path: str) -> None:  # noqa: ANN401
        """Remove the bad items of a list or map. Raises RefusedError for a long map: it has no order to cut by."""
        most = length_of(one)
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            for key in list(items):
                if self._is_bad(lambda key=key: rule({key: items[key]}, path)):  # type: ignore[misc]
                    del items[key]
            if len(items) > most:
                raise RefusedError(f"{path} has {len(items)} items, more than {most}")
            return
        is_message = one.message_type is not None
        bad = {
            place
            for place, item in enumerate(items)
            if self._is_bad(
                lambda item=item: self.clean(item, f"{path}.") if is_message else rule((item,), path)  # type: ignore[misc]
            )
        }
        if bad:  # one by one, the removal of many takes long
            good = [copy.deepcopy(item) for place, item in enumerate(items) if place not in bad]
            del items[:]
            items.extend(good)
        if len(items) > most:
            self._refuse(f"{path} has {len(items)} items, more than {most}")
            del items[most:]

    def _is_bad(self, check: Callable[[], None]) -> bool:
        try:
            check()
        except RefusedError as error:
            self._refuse(str(error))
            return True
        return False
