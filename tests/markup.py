"""Words that a careless page would take for markup, and the parts of a page."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><style>* { display: none }",
    "</title></head><body onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "[a](http://evil.example) ![b](http://evil.example/x.png)",
    "| a | b |",
    "`` ` `",
    "# heading",
    "- item",
    "1. item",
    "http://evil.example www.evil.example @team a@b.example",
    "{{ 7 * 7 }} {% raw %}",
    "&lt;b&gt; &#60;",
    "*a* _b_ ~~c~~ $x$ <!-- c -->",
    "\\",
]
"""One of each kind that some format takes for markup."""
LIVE = ("script", "img", "iframe", "object", "embed", "link", "form", "a", "base")
"""Elements that do something."""


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags
