// Ranking of hits: guides and explanations come before reference pages and gallery examples, which rarely answer a question
// on their own.
var Scorer = {
  score: function (result) {
    var page = result[0], score = result[4];
    if (/^(reference|auto_gallery|_modules)\//.test(page)) return score - 12;
    if (/^(results\/|changelog|contributing)/.test(page)) return score - 6;
    if (/^(reproduction|decisions|field|architecture)/.test(page)) return score - 3;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Sphinx gives a page the score of its best word, and shows only pages that contain every word. Here every further word in a
// heading counts, and twice if it is in the page's title. If fewer than three pages contain every word, pages that lack one
// word follow, then pages that lack two; a missing word costs as much as a word in the text counts.
function headingBonus(hit, words) {
  var index = Search._index, file = index.docnames.indexOf(hit[0]), title = index.titles[file].toLowerCase();
  return words.reduce(function (bonus, word) {
    var files = index.titleterms.hasOwnProperty(word) ? [].concat(index.titleterms[word]) : [];
    return bonus + (files.indexOf(file) >= 0 ? 2 : 0) + (title.includes(word) ? 2 : 0);
  }, 0);
}

(function () {
  if (typeof Search === "undefined") return;
  var exact = Search.performTermsSearch;
  Search.performTermsSearch = function (terms, excluded) {
    var found = exact(terms, excluded), words = Array.from(terms), sets = [words];
    for (var missing = 1; missing <= 2 && found.length < 3 && words.length > missing; missing++) {
      var fewer = [];
      sets.forEach(function (set) {
        set.forEach(function (word) {
          fewer.push(set.filter(function (other) { return other !== word; }));
        });
      });
      sets = fewer;
      var seen = new Set(found.map(function (hit) { return hit[0]; })), more = new Map();
      sets.forEach(function (set) {
        exact(new Set(set), excluded).forEach(function (hit) {
          if (seen.has(hit[0])) return;
          hit[4] -= Scorer.term * missing;
          var known = more.get(hit[0]);
          if (!known || known[4] < hit[4]) more.set(hit[0], hit);
        });
      });
      found = found.concat(Array.from(more.values()));
    }
    found.forEach(function (hit) { hit[4] += headingBonus(hit, words); });
    return found;
  };
})();
