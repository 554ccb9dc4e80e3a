"""Reads the numbers in lines of text, as trainers print them.

Most trainers print ``name: value``, ``name=value``, ``name | value`` or ``name value``, and one pattern reads them all:

    Megatron     iteration      100/    5000 | lm loss: 2.1E+00 | grad norm: 1.2 |
    torchtitan   [rank0]:[titan] ... step: 100  loss:  2.1  grad_norm:  1.2
    nanoGPT      iter 100: loss 2.1, time 148.74ms
    Trainer      {'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.5}

The table _STEP_FORMS has the steps without a name. If several ranks print, the first one with a loss is read.
"""

import re
from collections.abc import Iterator, Sequence

from holdfast_cli.loss_logs.log_columns import KNOWN, names_a_loss, plain
from holdfast_cli.loss_logs.log_lines import NumberedLine

_QUANTITIES = ("loss", "validation_loss", "grad_norm", "learning_rate", "epoch")
_NO_NAMES = frozenset({"value", "steps"})
"""Names of columns that mean something else in a sentence."""

_COUNT = r"[1-9]\d{0,2}(?:,\d{3})+|\d+"
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)|none|null"
_ENDS = r"(?![\w%]|[.,]\d)"
"""A number with a unit, as `9.46GiB`, is none that is looked for."""
_BETWEEN = r"""["']?(?:\s*[:=|]\s*|\s+)["'\[(]*(?:tensor\()?"""

_LOSS_LIKE = r"[a-z][\w/.]{0,40}[_/.]loss"
"""Any other name of a loss, as `total_loss`: if it is the only one, it is the loss of the log."""

_STEP_FORMS = (
    # torchvision and MMEngine: Epoch: [0][ 10/5005]
    re.compile(r"\[(?P<epoch>\d+)\] ?\[ *(?P<step>\d+)/\d+\]"),
    # timm and many examples: Train: 0 [  10/1251 (  1%)]
    re.compile(r"(?:(?P<epoch>\d+) )?\[ *(?P<step>\d+)/\d+ \("),
    # tqdm and Keras: 5%|4    | 50/1000 [00:10<03:20, loss=2.1]
    re.compile(r"(?:\||^) *(?P<step>\d+)/\d+ \["),
)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_RANK = re.compile(r"\brank[ :=_-]*(\d+)|^\s*\[default(\d+)\]|^\s*\[\d+,(\d+)\]<", re.IGNORECASE)
"""The last two are those of torchrun and mpirun."""
_RANK_CHARACTERS = 200
"""A rank is near the start of a line."""
_EVALUATION = re.compile(r"\b(validat|evaluat)", re.IGNORECASE)
_OTHER_LOSS = re.compile(
    "aux(iliary)?|z|kl|policy|value|critic|actor|entropy|balanc(e|ing)|router|regularization|distillation|best|min(imum)?"
    "|max(imum)?|lowest|previous|last|target",
    re.IGNORECASE,
)
"""Words before "loss" that make it another number than the loss of the step."""
_OTHER_STEP = re.compile("per|max|total|every|warmup|num|from|at", re.IGNORECASE)


def read_text(
    lines: Iterator[NumberedLine], *, loss: str | None, step: str | None
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number of each line with a loss, or with a step and another number, and its names and values.

    ``loss`` and ``step`` are names that the user gives, which are looked for too.
    """
    numbers = _Names([name for quantity in _QUANTITIES for name in KNOWN[quantity]], loss, _NUMBER, _OTHER_LOSS)
    steps = _Names(KNOWN["step"], step, _COUNT, _OTHER_STEP)
    rank: str | None = None
    epoch: dict[str, object] = {}
    for number, line in lines:
        text = _COLOURS.sub("", line)
        entry = numbers.read(text)
        if not entry:
            continue
        if "epoch" in entry:
            epoch = {"epoch": entry["epoch"]}  # Keras and others write it in a line of its own
        own_steps = steps.read(text) or _unnamed_step(text)
        if _EVALUATION.search(text):
            entry = {"validation_loss" if names_a_loss([name], loss) else name: entry[name] for name in entry}
        has_loss = names_a_loss(list(entry), loss)
        if not has_loss and (not own_steps or entry.keys() <= {"epoch"}):
            continue
        prefix = _RANK.search(text[:_RANK_CHARACTERS])
        own_rank = prefix[prefix.lastindex or 0] if prefix else None
        if has_loss:
            rank = rank or own_rank
        if own_rank in (None, rank):
            yield number, epoch | own_steps | entry


class _Names:
    """Finds numbers by the names before them."""

    def __init__(self, known: Sequence[str], given: str | None, value: str, others: re.Pattern[str]) -> None:
        self._others = others
        names_known = (given, *known) if given is not None else known
        self._shown = {plain(name): name for name in reversed(names_known) if name not in _NO_NAMES}
        """Plain name -> the name as it is reported."""
        names = "|".join(map(_spelled, sorted(self._shown, key=len, reverse=True)))
        self._pattern = re.compile(
            rf"(?<![\w./-])(?:(?P<before>[a-z]+) )??(?P<name>{names}|{_LOSS_LIKE}){_BETWEEN}(?P<value>{value}){_ENDS}",
            re.IGNORECASE,
        )

    def read(self, text: str) -> dict[str, object]:
        """Return the names and values in a line. The first value of a name counts."""
        found: dict[str, object] = {}
        for match in self._pattern.finditer(text):
            name = plain(match["name"])
            before = match["before"] or "" if name in self._shown else re.split("[_/.]", name)[-2]
            if not self._others.fullmatch(before):
                found.setdefault(self._shown.get(name, name), match["value"])
        return found


def _spelled(name: str) -> str:
    """Return a pattern of a name, which may be written with blanks or hyphens."""
    return re.escape(name[0]) + re.escape(name[1:]).replace("_", "[ _-]")


def _unnamed_step(text: str) -> dict[str, object]:
    matches = (form.search(text) for form in _STEP_FORMS)
    found = next((match.groupdict() for match in matches if match), {})
    return {name: value for name, value in found.items() if value is not None}
