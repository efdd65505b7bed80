"""Every query of the search box has an answer.

The theme searches with lunr, which puts the words of the site into an automaton. Two
states become one if their keys are equal. A key joins the letters of the edges and the
numbers of the states there with nothing between: an edge "1" to state 2345 looks like
"1" to state 2 and "3" to state 45. So now and then, words with digits lead to a word
that no page has: an error, and "no matching documents" for each query that it begins
with. Here, keys get commas.
"""

import pathlib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError


_KEYS = """
self.lunr.TokenSet.prototype.toString = function () {
  return this._str || [+this.final, ...Object.keys(this.edges).sort().map(
    (letter) => letter + this.edges[letter].id)].join();
};
"""


def on_post_build(config: MkDocsConfig, **kwargs: object) -> None:
    workers = pathlib.Path(config.site_dir, "assets/javascripts/workers")
    found = [*workers.glob("search.*.min.js")]
    if len(found) != 1 or "self.lunr=" not in (script := found[0].read_text()):
        raise PluginError(
            f"The search box has no worker with lunr in {workers}: {found}"
        )
    found[0].write_text(script + _KEYS)
