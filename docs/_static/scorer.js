// How hits are ranked: pages that tell come before pages that list. Reference pages and gallery examples are found, too, but
// rarely answer a question by themselves.
var Scorer = {
  score: function (result) {
    var page = result[0], score = result[4];
    if (/^(reference|auto_gallery|_modules)\//.test(page)) return score - 12;
    if (/^(results\/|changelog|contributing|reproduction|decisions|field|architecture)/.test(page)) return score - 3;
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
