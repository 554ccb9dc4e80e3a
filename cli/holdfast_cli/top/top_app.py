"""The application: brings what the poller sees to the screens, and their requests to the daemon."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.top.background import Done, LiveScreen, Seen, in_background, post
from holdfast_cli.top.checkpoint_screen import CheckpointScreen
from holdfast_cli.top.daemon_screen import DaemonScreen
from holdfast_cli.top.dialogs import Asked, HelpScreen, PickerScreen, QuestionScreen
from holdfast_cli.top.fault_screen import FaultScreen, FaultWanted, question_about
from holdfast_cli.top.incidents.incident_list import IncidentsScreen
from holdfast_cli.top.incidents.story_screen import RankWanted
from holdfast_cli.top.line_view import LineView
from holdfast_cli.top.poller import Poller
from holdfast_cli.top.ranks.rank_screen import RankScreen
from holdfast_cli.top.run_looks import LookSource, RunLook, reason_of
from holdfast_cli.top.run_screen import PageWanted, RunScreen
from holdfast_cli.views.clean_text import one_line
from holdfast_hooks.faults import Fault
from holdfast_proto.limits import STOP_GRACE_S

_NOTICE_S = 10.0


class TopApp(App[None]):
    """``holdfast top``: one run, or first the choice of one. ``first``: a look that has been taken already."""

    TITLE = "holdfast top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("question_mark", "help", show=False),
        Binding("i", "incidents", show=False),
        Binding("p", "checkpoints", show=False),
        Binding("h", "holdfast", show=False),
        Binding("c", "checkpoint", show=False),
        Binding("s", "stop", show=False),
        Binding("x", "inject", show=False),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Toast { width: 76; max-width: 100%; }
    OptionList { height: 1fr; border: none; padding: 0; }
    OptionList > .option-list--option-highlighted { text-style: bold reverse; }
    """

    def __init__(
        self,
        source: LookSource | None,
        *,
        first: RunLook | None = None,
        choices: Sequence[RunRecord] = (),
        directory: Path = Path(),
    ) -> None:
        # The terminal's own colours: they fit its background, need no more than 16, and NO_COLOR leaves out them all.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._source = source
        self._look = first
        self._choices, self._directory = choices, directory
        self._poller: Poller | None = None
        self._main = RunScreen()

    async def on_mount(self) -> None:
        """Open the run, or ask which."""
        await self.push_screen(self._main)
        if self._source is None:
            self.push_screen(PickerScreen(self._choices), self._chosen)
        else:
            self._watch(self._source)

    def on_unmount(self) -> None:
        """End the thread that looks."""
        if self._poller is not None:
            self._poller.stop()

    def _chosen(self, run: str | None) -> None:
        if run is None:
            self.exit()
        else:
            self._watch(LookSource(self._directory, run, None))

    def _watch(self, source: LookSource) -> None:
        self._source = source
        if self._look is not None:
            self.on_seen(Seen(self._look))
        self._poller = Poller(source, lambda seen: post(self, Seen(seen)))
        self._poller.start()

    def on_seen(self, message: Seen) -> None:
        """Pass on to all open screens what the poller has seen."""
        if isinstance(message.seen, RunLook):
            self._look = message.seen
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.post_message(Seen(message.seen))

    def on_done(self, message: Done) -> None:
        """Show the result of work in another thread."""
        message.apply()

    def on_line_view_opened(self, message: LineView.Opened) -> None:
        """Open a rank."""
        self._open_rank(message.rank, None)

    def on_rank_wanted(self, message: RankWanted) -> None:
        """Open a rank with its log of the generation of an incident."""
        self._open_rank(message.rank, message.generation)

    def _open_rank(self, rank: int, generation: int | None) -> None:
        source = self._source
        if self._look is None or source is None:
            return

        def closed(_: None) -> None:
            source.watched_rank = None

        source.watched_rank = rank
        self._look_now()
        self.push_screen(RankScreen(rank, self._look, source, generation), closed)

    def on_page_wanted(self, message: PageWanted) -> None:
        """Bring another page of the ranks."""
        if self._source is not None and self._source.page != message.page:
            self._source.page = message.page
            self._look_now()

    def _look_now(self) -> None:
        if self._poller is not None:
            self._poller.look_now()

    def on_asked(self, message: Asked) -> None:
        """Ask before something is done, and do it."""
        self._ask(message.question, message.request)

    def on_fault_wanted(self, message: FaultWanted) -> None:
        """Ask for a fault, and then whether to inject it."""
        source, look = self._source, self._look
        if source is None or look is None:
            return
        if look.status.HasField("settings") and not look.status.settings.injection_allowed:
            self._report(("the run allows no faults: start it with --allow-faults", False))
            return

        def chosen(fault: Fault | None) -> None:
            if fault is not None:
                self._ask(question_about(fault, look.status.run), lambda: source.inject(fault))

        self.push_screen(FaultScreen(message.rank), chosen)

    def action_help(self) -> None:
        """Show all keys."""
        if self.screen is self._main:
            self.push_screen(HelpScreen())

    def action_incidents(self) -> None:
        """Show the incidents."""
        if self._look is not None and self.screen is self._main:
            self.push_screen(IncidentsScreen(self._look))

    def action_checkpoints(self) -> None:
        """Show the checkpoints."""
        if self._look is not None and self.screen is self._main:
            self.push_screen(CheckpointScreen(self._look))

    def action_holdfast(self) -> None:
        """Show Holdfast itself."""
        if self._look is not None and self._source is not None and self.screen is self._main:
            self.push_screen(DaemonScreen(self._look, self._source))

    def action_checkpoint(self) -> None:
        """Ask, and request a checkpoint."""
        source = self._source
        is_here = self.screen is self._main or isinstance(self.screen, CheckpointScreen)
        if source is not None and self._look is not None and is_here:
            run = one_line(self._look.status.run)
            self._ask(f"Request a checkpoint of run {run} now?", source.take_checkpoint)

    def action_stop(self) -> None:
        """Ask, and stop the run."""
        source = self._source
        if source is not None and self._look is not None and self.screen is self._main:
            run = one_line(self._look.status.run)
            what = f"It first takes a last checkpoint, for which it has {STOP_GRACE_S:g} s."
            self._ask(f"Stop run {run}? {what}", source.stop)

    def action_inject(self) -> None:
        """Ask for a fault of the rank under the cursor."""
        if self.screen is self._main and (rank := self._main.chosen_rank) is not None:
            self.post_message(FaultWanted(rank))

    def _ask(self, question: str, request: Callable[[], str]) -> None:
        def answered(is_wanted: bool | None) -> None:
            if is_wanted:
                in_background(self, lambda: _outcome(request), self._report)

        self.push_screen(QuestionScreen(question), answered)

    def _report(self, outcome: tuple[str, bool]) -> None:
        text, is_done = outcome
        self.notify(one_line(text), severity="information" if is_done else "error", timeout=_NOTICE_S, markup=False)
        if self._poller is not None:
            self._poller.look_now()


def _outcome(request: Callable[[], str]) -> tuple[str, bool]:
    """Return what follows from a request, or why it was refused, and whether it was accepted."""
    try:
        return request(), True
    except (CommandError, OSError) as error:
        return str(error) if isinstance(error, CommandError) else reason_of(error), False
