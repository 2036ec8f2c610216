"""What the command prints: tables of facts, notes and lines. Text that is not ours is shown and never obeyed."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bats.data.checks import Validation
from bats.data.dataset import Dataset
from bats.data.episodes import Note, plural
from bats.graph.mdp import TabularMDP
from bats.graph.solve import logged_value

MARKS = {"problem": ("!", "bold red"), "decision": ("·", "cyan"), "fact": ("·", "dim")}


def print_solution(
    dataset: Dataset, mdp: TabularMDP, solved: dict[str, str], dead_end_value: float, out: Console
) -> None:
    """The MDP of a log, and what is known of it besides."""
    dead = int(((mdp.out_degree == 0) & ~mdp.terminal).sum())
    choices = int((mdp.out_degree > 1).sum())
    logged = logged_value(dataset, gamma=mdp.gamma, dead_end_value=dead_end_value)
    facts = {
        "states": f"{mdp.state_count:,}, of which {choices:,} have more than one action",
        "edges": f"{mdp.edge_count:,}",
        "dead ends": f"{dead:,}" + (f", taken as worth {dead_end_value:g}" if dead else ""),
        "start states": f"{len(mdp.starts):,}",
        "what the log earned from them": f"{logged:.6g}",
    }
    print_facts(f"{dataset.name}: solved exactly", facts | solved, out)
    print_problems(dataset, out)


def print_validation(dataset: Dataset, found: Validation, out: Console) -> None:
    print_facts(dataset.name, found.facts, out)
    table = Table("number", "least", "mean", "greatest", title="ranges", title_justify="left")
    for column in found.columns:
        mark = "  constant" if column.constant else ""
        numbers = (f"{column.min:g}", f"{column.mean:g}", f"{column.max:g}{mark}")
        table.add_row(Text(column.name), *numbers)
    out.print(table)
    for note in found.notes:
        print_note(note, out)
    if found.problems:
        out.print(f"{len(found.problems)} to look at", style="bold red")
    else:
        out.print("nothing to mend", style="bold green")


def print_facts(title: str, facts: dict[str, str], out: Console) -> None:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    out.print(table)


def print_columns(columns: dict[str, dict[str, str]], out: Console) -> None:
    """Columns of the same facts side by side; a fact that one has not is left empty."""
    table = Table("", *columns)
    for name in dict.fromkeys(name for facts in columns.values() for name in facts):
        table.add_row(name, *(Text(facts.get(name, "")) for facts in columns.values()))
    out.print(table)


def print_written(dataset: Dataset, target: str, out: Console) -> None:
    print_line(f"wrote {dataset!r} to {target}", out)
    first_rows = np.flatnonzero(np.concatenate([[True], dataset.episode_ends[:-1]]))
    if target.startswith("minari:") and not np.array_equal(dataset.starts, first_rows):
        lost = "Minari has no place for start states: read back, episodes start at their first rows."
        print_note(Note("problem", lost), out)
    print_problems(dataset, out)


def print_problems(dataset: Dataset, out: Console) -> None:
    """The problems met in reading, and that there is more to know."""
    for note in dataset.notes:
        if note.kind == "problem":
            print_note(note, out)
    decisions = sum(note.kind == "decision" for note in dataset.notes)
    if decisions:
        print_line(f"{plural(decisions, 'decision')} in reading it: `bats-rl validate` tells", out)


def print_note(note: Note, out: Console) -> None:
    mark, style = MARKS[note.kind]
    # soft: lines that go into a file are not broken, so that they can be searched
    out.print(Text.assemble((f"{mark} {note.kind}: ", style), note.text), soft_wrap=not out.is_terminal)


def print_line(line: str, out: Console) -> None:
    out.print(Text(line), soft_wrap=not out.is_terminal)
