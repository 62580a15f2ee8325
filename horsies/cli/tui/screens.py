"""What comes up over the board: a question before an act, and one task in full."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Question(ModalScreen[bool]):
    """Asks before something is done; only `y` means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]
    CSS = """
    Question { align: center middle; }
    Question > Static { width: auto; max-width: 90%; padding: 1 2; border: round $warning; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny: yes   n: no"))


class Closer(ModalScreen[None]):
    """Shows one task in full until it is dismissed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back")]
    CSS = """
    Closer { align: center middle; }
    Closer > VerticalScroll { width: 90%; height: 90%; padding: 1 2; border: round $primary; background: $surface; }
    """

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.text)
