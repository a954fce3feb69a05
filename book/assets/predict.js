// The solution of a prediction opens once the reader has written a guess.
"use strict";
for (const solution of document.querySelectorAll("div.solution.dropdown")) {
  const title = solution.querySelector(".admonition-title"), guess = document.createElement("input");
  if (!/prediction/i.test(title.textContent)) continue;
  const words = {className: "fc-guess", placeholder: "your guess, then Enter", ariaLabel: "Your guess, which opens the solution"};
  title.append(Object.assign(guess, words, {autocomplete: "off", enterKeyHint: "done"}));
  const hidden = () => solution.classList.contains("toggle-hidden");
  // A click that is not trusted is that of a script, such as the one that opens all folds for paper.
  solution.addEventListener("click", (event) => {
    const locked = event.isTrusted && hidden() && !guess.value.trim() && !event.target.closest("a");
    if (locked) guess.focus();
    if (locked || event.target === guess) event.stopPropagation();
  }, true);
  guess.addEventListener("change", () => {
    if (guess.value.trim() && hidden()) solution.querySelector(".toggle-button").click();
  });
}
