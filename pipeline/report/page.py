"""One self-contained page from sections of words, tables and drawings.

Everything is inline and the content security policy forbids any request, so a page can be mailed, archived
and opened years later. On a phone the rows of tables with more than three columns become blocks of lines; on
paper nothing scrolls and nothing is folded. Text is escaped; only drawings made by `pipeline.report.plots`
enter as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "lead", "pass", "fail", "note"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; the tone decides how loud it is."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, already in words."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG from `pipeline.report.plots` with what it says."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class DialogueStep:
    """One step of a shown rollout.

    Attributes:
        text: the step as sampled.
        value: V before it, or None.
        status: the verifier's word.
        note: the verifier's message.
    """

    text: str
    value: float | None
    status: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The steps of a rollout, folded until asked for."""

    title: str
    steps: tuple[DialogueStep, ...]


Block = Text | Table | Drawing | Dialogue


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page."""

    title: str
    blocks: tuple[Block, ...]


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{{ title }}</title>
<style>
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 0 auto; padding: 1rem;
  max-width: 56rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid #d5dae0; padding-bottom: .2rem; }
nav { font-size: .9rem; } nav a { margin-right: 1rem; color: #0b5cad; }
p.lead { font-size: 1.1rem; }
p.pass, p.fail { font-size: 1.1rem; border-left: .35rem solid; padding: .6rem .9rem; }
p.pass { border-color: #1a7f37; background: #eefaf1; } p.fail { border-color: #b3261e; background: #fdf0ef; }
p.note { color: #57606a; font-size: .92rem; }
.scroll { overflow-x: auto; } td, th { overflow-wrap: break-word; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #57606a; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid #e6e9ed; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; max-width: 34rem; }
figcaption { color: #57606a; font-size: .92rem; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
ol.steps { list-style: none; padding: 0; }
ol.steps li { border-left: .3rem solid #c8ced6; padding: .3rem .8rem; margin: .5rem 0; }
ol.steps li.ok { border-color: #1a7f37; } ol.steps li.wrong { border-color: #b3261e; }
ol.steps pre { white-space: pre-wrap; margin: .2rem 0; font: .88rem/1.4 ui-monospace, monospace; }
meter { width: 8rem; vertical-align: middle; }
@media (max-width: 40rem) {
  table.wide, .wide caption, .wide tbody, .wide tr, .wide td { display: block; }
  .wide thead { display: none; }
  .wide tr { border-bottom: 1px solid #c8ced6; padding: .4rem 0; }
  .wide td { border: 0; padding: .05rem 0; } .wide td:first-child { font-weight: 600; }
  .wide td + td:not(:empty)::before { content: attr(data-label) ": "; color: #57606a; }
  .wide td + td[data-label=""]:not(:empty)::before { content: ""; }
}
@media print {
  nav { display: none; } body { max-width: none; padding: 0; font-size: 10.5pt; } h2 { break-after: avoid; }
  figure, tr, li, p { break-inside: avoid; } figure svg { max-width: 13cm; }
  .scroll { overflow: visible; } table { font-size: 8.5pt; width: 100%; } p.pass, p.fail { font-size: 11pt; }
  details::details-content { content-visibility: visible; } meter { display: none; }
}
</style>
</head>
<body>
<h1>{{ title }}</h1>
<nav>{% for section in sections %}<a href="#s{{ loop.index }}">{{ section.title }}</a> {% endfor %}</nav>
{% for section in sections %}
<section id="s{{ loop.index }}">
<h2>{{ section.title }}</h2>
{% for block in section.blocks %}{% set kind = block.__class__.__name__ %}
{% if kind == "Text" %}<p class="{{ block.tone }}">{{ block.text }}</p>
{% elif kind == "Table" %}{% set wide = block.header | length > 3 %}
<div class="scroll"><table{% if wide %} class="wide"{% endif %}>
{% if block.caption %}<caption>{{ block.caption }}</caption>{% endif %}
<thead><tr>{% for cell in block.header %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in block.rows %}<tr>{% for cell in row -%}
<td{% if wide %} data-label="{{ block.header[loop.index0] }}"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
{% elif kind == "Drawing" %}<figure role="group" aria-label="{{ block.caption }}">
{{ block.svg | safe }}
<figcaption>{{ block.caption }}</figcaption></figure>
{% else %}<details><summary>{{ block.title }}</summary><ol class="steps">
{% for step in block.steps %}<li class="{{ step.status }}">
{% if step.value is not none %}<meter min="0" max="1" value="{{ '%.3f' % step.value }}"></meter>
V = {{ '%.2f' % step.value }} before this step &middot; {% endif %}verifier: {{ step.status }}
<pre>{{ step.text }}</pre>{% if step.note %}<em>{{ step.note }}</em>{% endif %}</li>
{% endfor %}</ol></details>
{% endif %}{% endfor %}
</section>
{% endfor %}
</body>
</html>
"""


def page(title: str, sections: Sequence[Section]) -> str:
    """Returns the page as HTML; a pure function of its arguments, without dates."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_TEMPLATE).render(title=title, sections=sections)
