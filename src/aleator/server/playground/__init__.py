"""The playground: a page that shows and changes every draw, and its endpoints (docs/playground.md).

Any program can use the endpoints, with JSON objects. **Options** are the options of a generation,
**parameters** the sampling parameters, both with ``preset``. An error is ``{"error": {"message", "param",
"code"}}``; a grammar's also has ``line`` and ``column``. Below ``/api/playground``:

- ``GET`` itself: ``samplers``, ``parameters`` (range, help, flags, slider, JSON schema), ``options``, ``beams``
  (options of a search), ``presets``, ``model``, ``memory``
- ``POST /texts`` with ``prompt`` (text or ids), or ``messages``, or ``parent``, ``at``, ``token``; ``top``;
  options; parameters: a stream, below
- ``POST /beams`` with ``prompt`` or ``messages``; options of beams; parameters: a stream, below
- ``DELETE /texts/{id}``: deletes a text, and the logits that no other text needs
- ``POST /texts/{id}/step`` with ``step``, ``top``; parameters: everything about a step, with the text's chain
  or another
- ``POST /texts/{id}/resample`` with parameters: draws each step with another chain, which then accepts the
  written token. ``changed`` (drawn tokens that differ, by step), ``forgotten`` (steps without logits),
  ``refused`` (first step whose token its grammar forbids). The seed is the text's by default
- ``POST /texts/{id}/draws`` with ``step``, ``n`` (up to 10,000); parameters: counts of draws at positions 0 to
  n - 1 of the random stream, and exact probabilities at the step's own position
- ``POST /chain`` with parameters: whether the chain is possible; ``cli``, ``json``, ``python``
- ``GET /texts/{id}/page``: one HTML file of the text, the texts that it branches from, and all steps
- ``POST /page`` with ``texts`` (each ``id``, ``name``); ``current``, ``step``, ``view``, ``shade``; ``compare``
  (two ids), ``draws`` (each ``id``, ``step``), ``script``: one HTML file of several texts, what is compared,
  and cells
- ``POST /cache`` with ``script``, operations as of ``aleator cache-view``: the cells of a context of 80 cells
  after each; ``window``, those of window layers; ``states``, of recurrent ones
- ``GET /cells``: the present contents of the engine's cells, in runs; ``window`` and ``states`` as above
- ``POST /tokens`` with ``text``: its tokens, as a prompt has them

A **token** is ``{"id", "text"}``, with ``bytes`` in hexadecimal if it is not UTF-8 (``text`` is null),
``special`` of a control token, ``length`` of a text that was cut. A text's stream is lines of JSON
(``application/x-ndjson``), each with ``event``:

- ``start``: ``id``; ``parent`` and ``at`` (how many of the parent's drawn tokens it shares); ``prompt``
  (tokens); ``inherited`` (drawn tokens that it begins with); ``seed``; ``chain``.
- ``step``: ``step`` (from 0); ``token``; ``picked`` (a user chose it, and the chain draws another one);
  ``before`` and ``after`` (its probability by the model, and after the chain); ``entropy`` and
  ``entropy_after`` in bits; ``left`` (candidates); ``stages`` (of samplers that are not neutral: ``left``,
  ``removed``, the ``cut`` and ``moved`` mass, ``entropy``); ``top`` (the most likely tokens, ``before`` and
  ``after``). If its logits were forgotten, it has ``forgotten``, its token, and null for the rest.
- ``end``: ``reason``; ``steps``; ``computed`` and ``reused`` (tokens of the prompt); ``seconds``;
  ``kept_bytes`` and ``kept_limit`` (of kept logits).
- ``error``: what ended the stream.

A search's stream has a ``start`` with ``prompt``, ``seed`` and ``chain``; a line for each step, whose ``beams``
are those of ``search.steps`` (docs/beams.md); and an ``end`` with ``reason`` and ``texts``.

Closing the connection ends the text; what was written is kept.
"""
