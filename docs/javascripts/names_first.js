// The search box ranks rare words first. So "adam" finds Adamax before Adam, whose name is
// a word of many entries. Here, entries whose name is what was typed come first, and then
// optimizers whose name is one of the words: "muon fallback" leads to the page of Muon.
//
// The title of an entry has all of its names: eqopt's, then those in Optax, torch and papers.
// This script runs before the theme starts the worker of the search box, and sorts the
// answers of that worker before the theme sees them.
{
  const plain = (text) =>
    text.replace(/<[^>]*>/g, "").replace(/\s+/g, " ").trim();
  // "adam mini" is AdamMini.
  const bare = (text) => text.toLowerCase().replace(/[ -]/g, "");
  const isOwn = (name, typed) => name === typed || name.endsWith("." + typed);

  // What follows the first place where a list of names has what was typed, or `undefined`.
  const after = (names, typed) => {
    for (let at = 0; (at = names.indexOf(typed, at)) >= 0; at++) {
      const next = names[at + typed.length];
      if (/[ .]/.test(names[at - 1]) && /[ (]/.test(next)) return next;
    }
  };

  // How well what was typed fits an entry: 0 is best, `null` is not at all.
  const fit = (exact, { location, title }) => {
    const typed = exact.toLowerCase();
    const name = decodeURIComponent(location.split("#")[1] ?? "");
    if (!name.startsWith("eqopt.") || name.includes("._")) return null;
    const names = ` ${plain(title)} `;
    if (isOwn(bare(name), bare(typed))) {
      const otherCase = !after(names, exact); // Scale is not SCALE
      return name.length / 1000 + otherCase / 2;
    }
    const next = after(names.toLowerCase(), typed);
    if (next) return (next === " " ? 1 : 2) + names.length / 10000;
    const isWord = typed.split(" ").some((word) => isOwn(name.toLowerCase(), word));
    return isWord && location.startsWith("api/optimizers/") ? 2.9 : null;
  };

  const namesFirst = (typed, groups) => {
    const best = new Map();
    for (const group of groups) {
      const highest = Math.max(...group.map((found) => found.score));
      for (const found of group) {
        const fits = fit(typed, found);
        if (fits === null) continue;
        found.score = highest + 3 - fits; // the theme folds up what has a low score
        best.set(group, Math.min(fits, best.get(group) ?? 3));
      }
      if (best.has(group)) group.sort((a, b) => b.score - a.score);
    }
    groups.sort((a, b) => (best.get(a) ?? 3) - (best.get(b) ?? 3)); // others stay in order
  };

  window.Worker = class extends window.Worker {
    constructor(...options) {
      super(...options);
      let typed = "";
      const post = this.postMessage.bind(this);
      this.postMessage = (message) => {
        if (typeof message.data === "string") typed = plain(message.data);
        return post(message);
      };
      this.addEventListener("message", ({ data: answer }) => {
        if (typed && answer.data?.items) namesFirst(typed, answer.data.items);
      });
    }
  };
}
