// Mends in the browser what keeps a screen reader or a keyboard from Evidently's page, after every change that it draws.
(() => {
  "use strict";
  const set = (element, values) => {
    for (const [name, value] of Object.entries(values))
      if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const clear = (element, names) => names.forEach((name) => element.removeAttribute(name));
  const all = (selector) => document.querySelectorAll(selector);

  function mend() {
    // The page's own heading is the first; all of Evidently's are of level 5, and some are empty.
    for (const heading of all("h2, h3, h4, h5, h6")) {
      set(heading, { "aria-level": "2" });
      const empty = heading.textContent.trim() === "";
      if (heading.hidden !== empty) heading.hidden = empty;
    }
    // A heading of a column is a handle to drag it, and in that a heading once more, which sorts: one control in another.
    // The keyboard sorts; a column is moved with the mouse alone.
    for (const handle of all("th [data-rfd-drag-handle-draggable-id]"))
      clear(handle, ["role", "tabindex", "aria-describedby"]);
    for (const sorter of all("th .MuiTableSortLabel-root")) {
      set(sorter, { role: "button" });
      if (!sorter.hasAttribute("aria-sort")) continue;
      set(sorter.closest("th"), { "aria-sort": sorter.getAttribute("aria-sort") });
      clear(sorter, ["aria-sort"]);
    }
    for (const empty of all("thead th:empty")) {
      const name = document.createElement("span");
      name.className = "for-screen-readers";
      name.textContent = "Details";
      empty.append(name);
    }
    for (const picture of all("tbody td svg:not([aria-hidden])")) {
      const cell = picture.closest("td");
      if (cell.colSpan > 1) continue;  // the details of a row, drawn with text of their own
      const column = cell.closest("table").querySelectorAll("thead th")[cell.cellIndex]?.textContent.trim();
      const row = [...cell.parentElement.cells].map((one) => one.textContent.trim()).find(Boolean);
      set(picture, { role: "img", "aria-label": `${column} of ${row}` });
    }
    for (const button of all("button:not([aria-label])"))
      if (button.textContent.trim() === "") set(button, { "aria-label": "Theme" });
    for (const list of all("[role=combobox]:not([aria-label], [aria-labelledby])")) set(list, { "aria-label": "Theme" });
    for (const popover of all(".MuiPopover-root")) set(popover, { role: "dialog", "aria-label": "Choices" });
  }

  mend();
  new MutationObserver(mend).observe(document.body, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["aria-sort", "role", "tabindex"],
  });
})();
