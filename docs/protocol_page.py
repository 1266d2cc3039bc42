"""Writes the table of docs/protocol.md from the broker's own table of API keys: `python docs/protocol_page.py`."""

from __future__ import annotations

from pathlib import Path

from moldau.broker.api_table import REFUSED, SERVED, advertised_range
from moldau.protocol.messages.registry import API_MESSAGES

PAGE = Path(__file__).with_name("protocol.md")
BEGIN, END = "<!-- table: python docs/protocol_page.py -->", "<!-- end of table -->"


def table() -> str:
    """One line for each key, in order."""
    lines = ["| key | API | versions | if not served, why |", "|---|---|---|---|"]
    for key in sorted(API_MESSAGES):
        name = API_MESSAGES[key].name
        if key in SERVED:
            low, high = advertised_range(SERVED[key])
            lines.append(f"| {key} | {name} | {low}-{high} | |")
        else:
            lines.append(f"| {key} | {name} | | {REFUSED[key].reason} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it should be now."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
