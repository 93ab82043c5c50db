// Sphinx's search finds a query inside of longer words too: "amp" in "ramp", "lr" in "already". With this file, a word of
// fewer than four letters finds only whole words. A capital begins a word, so "lr" still finds `LinearLR`.
"use strict";

const SHORTEST_PART = 4; // letters that may match a part of a word

const hasWord = (text, word) =>
  text
    .replace(/([a-z])(?=[A-Z])|([A-Z])(?=[A-Z][a-z])/g, "$& ")
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .includes(word);

const matchWholeWords = () => {
  if (typeof Search === "undefined") return; // not the page of the search

  const performSearch = Search._performSearch;
  Search._performSearch = (query, searchTerms, ...others) => {
    const word = query.toLowerCase().trim();
    const withWord = (table) =>
      word.length < SHORTEST_PART
        ? Object.fromEntries(Object.entries(table).filter(([text]) => hasWord(text, word)))
        : table;
    // Sphinx looks for parts of words only where the index lacks the word: an empty entry prevents this.
    const short = [...searchTerms].filter((term) => term.length < SHORTEST_PART);
    const withShort = (table) => ({ ...Object.fromEntries(short.map((term) => [term, []])), ...table });
    const index = Search._index;
    Search._index = {
      ...index,
      alltitles: withWord(index.alltitles),
      indexentries: withWord(index.indexentries),
      terms: withShort(index.terms),
      titleterms: withShort(index.titleterms),
    };
    try {
      return performSearch(query, searchTerms, ...others);
    } finally {
      Search._index = index;
    }
  };

  const searchObjects = Search.performObjectSearch;
  Search.performObjectSearch = (name, names) =>
    searchObjects(name, names).filter(([, fullName]) => name.length >= SHORTEST_PART || hasWord(fullName, name));
};

document.addEventListener("DOMContentLoaded", matchWholeWords);
