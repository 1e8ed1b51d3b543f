// Sortable tables: each heading becomes a button; figures sort as numbers, cells without one always stand last.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) continue;
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    if (!button.textContent.trim()) button.setAttribute("aria-label", "mark");
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.getAttribute("aria-sort")];
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", next);
      body.append(...(next === "none" ? original : sorted(original, column, next === "ascending" ? 1 : -1)));
    });
  });
}

function sorted(rows, column, sign) {
  const keyed = rows.map((row) => {
    const text = row.cells[column].textContent.trim();
    const digits = text.replace(/,/g, "").match(/^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?/);
    return { row, text, value: digits ? Number(digits[0]) : null, empty: text === "" || text === "-" };
  });
  const numeric = keyed.every((item) => item.empty || item.value !== null);
  keyed.sort((a, b) => {
    if (a.empty || b.empty) return Number(a.empty) - Number(b.empty);
    return sign * (numeric ? a.value - b.value : a.text.localeCompare(b.text, "en", { numeric: true }));
  });
  return keyed.map((item) => item.row);
}

// On paper everything but the logs is unfolded.
const unfolded = [];
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not(.log):not([open])")) {
    fold.open = true;
    unfolded.push(fold);
  }
});
addEventListener("afterprint", () => {
  for (const fold of unfolded.splice(0)) fold.open = false;
});
